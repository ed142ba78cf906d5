"""What fails and how often: published logs and lists of components, from data files (`failures/*.yaml`) or a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..documents import parse, read
from ..errors import Malformed, ParasimError, Unparsable
from ..units import parse as quantity
from ..words import known, nearest

CAUSE_KEYS = ("count", "mtbf", "replace", "silent")
FILE_KEYS = ("source", "observed", "planned", "causes")


@dataclass(frozen=True)
class Cause:
    """One way to fail: failures per second and device; whether it takes a server away, and whether it goes unnoticed at first."""

    name: str
    rate: float
    replace: bool = False
    silent: bool = False


@dataclass(frozen=True)
class FailureLog:
    """Causes, and planned interruptions per second and device, from `source`."""

    name: str
    source: str
    causes: tuple[Cause, ...]
    planned: float = 0.0

    def mtbf(self, devices: int) -> float:
        """Seconds between failures of a job of `devices`: rates add over devices and causes."""
        return 1 / (devices * self.rate())

    def rate(self, **flags: bool) -> float:
        """Failures per second and device of the causes with these flags (`silent=True`)."""
        return sum(c.rate for c in self.causes if all(getattr(c, k) == v for k, v in flags.items()))

    def facts(self, devices: int) -> dict[str, Any]:
        """Shares of the causes among failures, and among all interruptions with the planned ones; seconds between failures of a job of `devices`, of
        one device, and of a job of twice as many devices (all must run for the job to run)."""
        total, every = self.rate(), self.rate() + self.planned
        return {
            "source": self.source,
            "planned_share_of_all": self.planned / every,
            "causes": {c.name: {"share_of_unplanned": c.rate / total, "share_of_all": c.rate / every} for c in self.causes},
            "job_mtbf_s": self.mtbf(devices),
            "device_mtbf_s": self.mtbf(1),
            "mtbf_factor_when_devices_double": self.mtbf(2 * devices) / self.mtbf(devices),
        }

    def share(self, **flags: bool) -> float:
        """Their share of all failures."""
        return self.rate(**flags) / self.rate()


def failure_logs() -> list[str]:
    """Names of the logs that come with parasim."""
    return sorted(e.name.removesuffix(".yaml") for e in files(__package__).joinpath("failures").iterdir() if e.name.endswith(".yaml"))


def load_failures(name: str) -> FailureLog:
    """The log called `name`, or in the file of that path.

    `causes: {name: {count: 148}}` counts failures over `observed: {time, devices}`; `{mtbf: 50000 h}` is that of one
    device (of the server, switches and cables, divided over their devices). Raises Malformed, Unparsable.
    """
    if name in failure_logs():
        document = parse(files(__package__).joinpath("failures", f"{name}.yaml").read_bytes(), f"{name}.yaml")
    elif Path(name).suffix in (".yaml", ".yml"):
        document = read(Path(name))
    else:
        raise Malformed(f"--failures {name!r} is no log and no YAML file; {nearest(name, failure_logs())}")
    keys = document.mapping()
    try:
        return _log(Path(name).stem, keys)
    except Unparsable:
        raise
    except ParasimError as error:
        raise Malformed(f"{name}: {error}") from None


def _log(name: str, keys: Mapping[str, Any]) -> FailureLog:
    for key in keys:
        known(key, FILE_KEYS, "key")
    causes = keys.get("causes")
    if not isinstance(causes, Mapping) or not causes:
        raise Unparsable(f"{name}: lacks causes, a mapping such as {{GPU: {{mtbf: 50000 h}}}}")
    exposure = _exposure(keys)
    planned = _number(keys.get("planned", 0), "planned")
    if planned and not exposure:
        raise Malformed("planned counts interruptions over observed: {time, devices}, which is missing")
    rows = tuple(_cause(str(n), c, exposure) for n, c in causes.items())
    if not any(c.rate for c in rows):
        raise Malformed("causes never fail: give at least one a count or an mtbf")
    return FailureLog(name, str(keys.get("source", name)), rows, planned / exposure if exposure else 0.0)


def _exposure(keys: Mapping[str, Any]) -> float:
    """Device-seconds that were observed; 0: none."""
    observed = keys.get("observed")
    if observed is None:
        return 0.0
    if not isinstance(observed, Mapping) or set(observed) != {"time", "devices"}:
        raise Malformed("observed is written {time: 54 d, devices: 16384}")
    exposure = quantity(observed["time"], "seconds") * _number(observed["devices"], "observed.devices")
    if not exposure:
        raise Malformed("observed.time and observed.devices must be more than 0")
    return exposure


def _cause(name: str, keys: object, exposure: float) -> Cause:
    if not isinstance(keys, Mapping) or ("count" in keys) == ("mtbf" in keys):
        raise Malformed(f"causes.{name} needs either count (over what was observed) or mtbf, such as {{mtbf: 50000 h}}")
    for key in keys:
        known(str(key), CAUSE_KEYS, f"causes.{name}: key")
    for key in ("replace", "silent"):
        if not isinstance(keys.get(key, False), bool):
            raise Malformed(f"causes.{name}.{key}={keys[key]!r} must be true or false")
    if "mtbf" in keys:
        mtbf = quantity(keys["mtbf"], "seconds")
        if not mtbf:
            raise Malformed(f"causes.{name}.mtbf={keys['mtbf']} must be more than 0 s")
        rate = 1 / mtbf
    elif exposure:
        rate = _number(keys["count"], f"causes.{name}.count") / exposure
    else:
        raise Malformed(f"causes.{name}.count is over observed: {{time, devices}}, which is missing")
    return Cause(name, rate, keys.get("replace", False), keys.get("silent", False))


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise Malformed(f"{field}={value!r} must be a number, 0 or more")
    return float(value)
