"""One run of the lab, in the namespaces that `wrapper` made: network after network is laid out, checked, fitted, and its cases run and judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import typer

from parasim.cost.profile import Profile, load_profile, save_profile
from parasim.errors import Failed, Refused
from parasim.sim import simulate
from parasim.topology.cluster import Cluster

from .cases import CASES, Case, Cases, Single, cluster_of, read_cases
from .controls import BUCKETS, pure_latency, two_at_a_time
from .crowding import crowded
from .fitting import bare, fit
from .judging import SPREAD, Gate, Verdict, disturbance, gate
from .namespaces import laid_out
from .networks import Network, network_of
from .pictures import draw
from .ranks import run_on
from .results import write

TRIES = 3  # times that a case is measured when its repetitions disagree
REFERENCE, REPEATS = 2_000_000, 5  # bytes of the all-reduce, and repetitions, that show spread and rate of a network before anything else
OFF = 0.15  # of the time that its bytes alone should take: a network farther off is not shaped as it was told
UNSHAPED = ("star-dp4-flat", "star-1f1b-1500k", "star-all-reduce-4M")  # what the network without shapers is tried with


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    case: tuple[str, ...] = ()
    cases: str = str(CASES)
    out: str = ""
    plot: str = ""
    repeats: int = 5
    controls: bool = False
    profiles: str = ""
    fit_only: bool = False

    def text(self) -> str:
        """As one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Options:
        """From `text`."""
        keys = json.loads(text)
        return cls(**{**keys, "case": tuple(keys["case"])})


@dataclass
class Found:
    """What a run has measured so far: profiles by network, verdicts, cases that ended early with what they said, gates of the controls."""

    profiles: dict[str, Profile] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    controls: dict[str, Gate] = field(default_factory=dict)

    @property
    def gate(self) -> Gate:
        """All verdicts, and a fault for each case that did not end."""
        held = gate(self.verdicts)
        return replace(held, faults=(*held.faults, *(f"{name} did not end: {why.splitlines()[0]}" for name, why in self.failed.items())))


def run(options: Options) -> None:
    """All of it. Raises Refused where the gate, or a control, does not come out as it must; what was measured until then is written in any case."""
    cases = read_cases(Path(options.cases)).named(options.case)
    found = Found()
    try:
        for name in cases.networks:
            _network(name, cases, options, found)
        if options.controls and not options.fit_only:
            _controls(cases, options, found)
    finally:
        if options.out:
            write(Path(options.out), found)
    if not options.fit_only:
        _told(found)


def _network(name: str, cases: Cases, options: Options, found: Found) -> None:
    cluster = cluster_of(name)
    network = network_of(cluster)
    with laid_out(network):
        _checked(name, network, cluster)
        found.profiles[name] = profile = _profile(name, network, cluster, options)
        for case in () if options.fit_only else cases.on(name):
            try:
                verdict = _verdict(case, network, cluster, profile, options.repeats)
            except Failed as error:
                found.failed[case.name] = str(error)
                typer.echo(f"FAILED {case.name}: {error}")
                continue
            found.verdicts.append(verdict)
            typer.echo(_row(verdict))
            if options.plot:
                Path(options.plot).mkdir(parents=True, exist_ok=True)
                draw(verdict, Path(options.plot) / f"{case.name}.png")


def _checked(name: str, network: Network, cluster: Cluster) -> None:
    """Print spread and rate of an all-reduce. Raises Refused where they say that nothing can be judged here now, or that the network is not shaped."""
    single = Single("reference", name, "all_reduce", REFERENCE)
    verdict = _measured(single, network, cluster, bare(name), REPEATS)
    predicted, measured = verdict.seconds
    words = "; ".join(f"repetition {i + 1}: {disturbance(verdict.repetitions[i])}" for i in verdict.disturbed)
    typer.echo(
        f"{name}: spread of {REPEATS} repetitions {verdict.spread:.2%}; an all-reduce of {REFERENCE / 1e6:g} MB takes {measured * 1e3:.1f} ms, "
        f"its bytes alone {predicted * 1e3:.1f} ms" + (f"; {words}" if words else "")
    )
    if verdict.spread > SPREAD:
        raise Refused(f"{name}: {REPEATS} repetitions of the same collectives differ by {verdict.spread:.1%}, more than {SPREAD:.0%}: too noisy to judge now")
    if abs(verdict.error) > OFF:
        raise Refused(f"{name}: the same bytes should take {predicted * 1e3:.1f} ms and take {measured * 1e3:.1f} ms: the network is not shaped as it was told")


def _profile(name: str, network: Network, cluster: Cluster, options: Options) -> Profile:
    """The fitted profile of a network: the one in the folder of profiles, or a new one, which is then written there."""
    file = Path(options.profiles) / f"{cluster.name}.yaml" if options.profiles else None
    if file is not None and file.is_file() and not options.fit_only:
        return load_profile(file)
    profile = fit(cluster.name, network, cluster)
    fitted = {key: number.value for key, number in profile.numbers.items() if number.status == "fitted"}
    typer.echo(f"{name}: fitted " + ", ".join(f"{key.removeprefix('collective.')} {value * 1e3:.2f} ms" for key, value in sorted(fitted.items())))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_profile(profile, file)
    return profile


def _measured(case: Case | Single, network: Network, cluster: Cluster, profile: Profile, repeats: int) -> Verdict:
    """Predict, then run."""
    workload = case.workload()
    predicted = simulate(workload, cluster, profile, fold=False)
    (repetitions,) = run_on(network, [workload], cluster.accelerator, repeats, predicted.makespan)
    return Verdict(case, predicted, repetitions, crowded=crowded(workload, network))


def _verdict(case: Case | Single, network: Network, cluster: Cluster, profile: Profile, repeats: int) -> Verdict:
    """Predict and run, again where the repetitions disagree or were disturbed; all tries are printed, the last one counts."""
    for tries in range(1, TRIES + 1):
        verdict = replace(_measured(case, network, cluster, profile, repeats), tries=tries)
        if verdict.quiet:
            break
        again = ", measured again" if tries < TRIES else ""
        typer.echo(f"noisy {case.name}: spread {verdict.spread:.1%}, {len(verdict.disturbed)} of {repeats} repetitions disturbed{again}")
    return verdict


def _row(v: Verdict) -> str:
    predicted, measured = v.seconds
    start = "" if isinstance(v.case, Single) else f"  starts {v.start:6.2%}"
    words = [f"repetition {i + 1}: {disturbance(v.repetitions[i])}" for i in v.disturbed] + ([f"not judged: {v.reported}"] if v.reported else [])
    return (
        f"{v.case.name:28s} predicted {predicted * 1e3:7.1f} ms  measured {measured * 1e3:7.1f} ms  error {v.error:+7.2%}  spread {v.spread:5.2%}{start}"
        + "".join(f"  [{w}]" for w in words)
    )


def _controls(cases: Cases, options: Options, found: Found) -> None:
    """The gate over wrong predictions of what was measured, and over right ones of a network without shapers."""
    clusters = {name: cluster_of(name) for name in found.profiles}
    wrong = [
        replace(v, predicted=pure_latency(v.case.workload(), clusters[v.case.network], found.profiles[v.case.network], fold=False)) for v in found.verdicts
    ]
    found.controls["transfers that never share a link"] = gate(wrong)
    doubled = [
        replace(v, predicted=simulate(two_at_a_time(v.case.workload()), clusters[v.case.network], found.profiles[v.case.network], fold=False))
        for v in found.verdicts
        if v.case.subject == BUCKETS
    ]
    if doubled:
        found.controls["two collectives at a time, bucket cases"] = gate(doubled)
    open_ = list(_unshaped(options, found))
    if open_:
        found.controls["a network without shapers"] = gate(open_)


def _unshaped(options: Options, found: Found) -> Iterator[Verdict]:
    """Cases on the star without shapers; they need not be among those asked for."""
    if "star" not in found.profiles:
        return
    cluster = cluster_of("star")
    network = network_of(cluster)
    with laid_out(network, shaped=False):
        for case in read_cases(CASES).named(UNSHAPED).on("star"):
            yield _measured(case, network, cluster, found.profiles["star"], options.repeats)


def _told(found: Found) -> None:
    """Print the gate and the controls. Raises Refused where one is not as it must be."""
    held = found.gate
    spreads = sorted(v.spread for v in found.verdicts)
    if spreads:
        typer.echo(f"\nspread of repetitions: median {spreads[len(spreads) // 2]:.2%}, worst {spreads[-1]:.2%}")
    for line in held.lines:
        typer.echo(f"{'MISS' if line in held.faults else 'ok  '} {line}")
    for refused in held.refused:
        typer.echo(f"left {refused}")
    for fault in held.faults:
        if fault not in held.lines:
            typer.echo(f"MISS {fault}")
    passed = [name for name, control in found.controls.items() if control.holds]
    for name, control in found.controls.items():
        why = control.faults[0] if control.faults else "; ".join(control.lines)
        typer.echo(f"{'MISS' if control.holds else 'ok  '} control, {name}: {'passes the gate' if control.holds else 'fails the gate'}: {why}")
    if not held.holds or passed:
        missed = [*(["the gate does not hold"] if not held.holds else []), *(f"the gate lets {name} pass" for name in passed)]
        raise Refused("; ".join(missed))
