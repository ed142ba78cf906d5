"""The documentation is true: example files run, links resolve, commands parse, the list of what is missing is the one the code keeps."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import parasim as ps
from parasim.cli import app
from parasim.config.not_yet import NOT_YET
from parasim.config.plan import Plan
from parasim.jobs import check_run
from parasim.lowering import lower
from parasim.program.workload import Workload
from parasim.topology.loader import load_cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
CLUSTERS = sorted(EXAMPLES.rglob("*cluster*.yaml"))
RUNS = sorted(set(EXAMPLES.rglob("*.yaml")) - set(CLUSTERS))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
DOC = re.compile(r"\{doc\}`[^`<]*<([^`>]+)>`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CHEAP = ("catalog", "collective", "schedule", "check", "program")


def named(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda p: str(p.relative_to(ROOT)))


@pytest.fixture
def lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check and a simulation of one run share its Workload."""
    kept: list[tuple[Plan, Workload]] = []

    def once(plan: Plan, *, check: bool = True) -> Workload:
        assert check
        if not kept or kept[-1][0] != plan:
            kept.append((plan, lower(plan)))
        return kept[-1][1]

    for user in ("jobs", "api"):
        monkeypatch.setattr(f"parasim.{user}.lower", once)


@named(RUNS)
@pytest.mark.usefixtures("lowered_once")
def test_every_example_checks_and_simulates(path: Path) -> None:
    assert check_run(path, ()).fits
    report = ps.simulate_run(ps.load(path)).report
    times = report.to_json()["time_s"]
    # compute, exposed and idle are all that a compute stream does (docs/design.md, where time goes)
    assert times["compute"] + times["idle"] + sum(times["exposed"].values()) == pytest.approx(report.step_time, rel=1e-9)
    assert report.memory is not None and report.memory.fits


@named(CLUSTERS)
def test_every_example_cluster_loads_with_all_its_devices_joined(path: Path) -> None:
    cluster = load_cluster(path, 16)
    assert len(cluster.devices) == 16
    assert cluster.route(cluster.devices[0], cluster.devices[-1])


def test_fixed_example_takes_what_its_comment_says() -> None:
    # (m + p - 1) (F + I + W) = (8 + 4 - 1) 30 ms; six messages of 1 MB at 2 GB/s and 50 us are on the way down and up, no more than two per
    # microbatch are in the way
    step = ps.simulate_run(ps.load(EXAMPLES / "fixed-1f1b.yaml")).report.step_time
    message = 1e6 / 2e9 + 50e-6
    assert 0.330 + 6 * message <= step <= 0.330 + 16 * message + 1e-9


@named(PAGES)
def test_every_relative_link_resolves(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@named(PAGES)
def test_every_page_of_the_gallery_that_is_named_exists(path: Path) -> None:
    """Pages below lectures/ are made of docs/gallery while the site is built."""
    for target in DOC.findall(path.read_text(encoding="utf-8")):
        page = (path.parent / target).resolve().relative_to(ROOT / "docs")
        made = ROOT / "docs" / "gallery" / page.relative_to("lectures") if page.parts[0] == "lectures" else ROOT / "docs" / page
        assert page.name == "index" or made.with_suffix(".py").exists(), target


def test_every_page_is_in_a_table_of_contents() -> None:
    entries = set()
    for page in (ROOT / "docs").rglob("*.md"):
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            entries |= {(page.parent / line).resolve() for line in block.split() if not line.startswith(":")}
    pages = {p.with_suffix("") for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts and p != ROOT / "docs" / "index.md"}
    assert pages - entries == set()


def anchors(page: Path) -> list[str]:
    """Anchors as GitHub makes them of headings."""
    return [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in HEADING.findall(page.read_text(encoding="utf-8"))]


@named([p for p in PAGES if p.name != "CHANGELOG.md"])
def test_pages_are_plain(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search("[\U0001f300-\U0001faff]", text)
    assert text.endswith("\n") and "\t" not in text


@named(PAGES)
def test_tables_are_whole_and_no_merge_is_left(path: Path) -> None:
    """A run of rows is a table only with its head: an empty line in between would cut it off."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"^(<{7} |={7}$|>{7} )", text, re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for rows in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE):
        assert re.match(r".*\n\|[-:| ]+\|\n", rows), rows[:80]


def commands(path: Path) -> list[str]:
    """Command lines of parasim on a page: behind a prompt, in a comment of an example, or in backticks."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^\$ (.*parasim .*)$", text, re.MULTILINE) + re.findall(r"`((?:torchrun [^`\n]*-m )?parasim [a-z][^`\n]*)`", text)
    found += re.findall(r"^# +((?:torchrun .*-m )?parasim .+)$", text, re.MULTILINE)
    return [c.split("-m ", 1)[1] if c.startswith("torchrun") else c for c in found if "parasim" in c.split()[:1] or "-m parasim" in c]


COMMANDS = sorted({c for page in [*PAGES, *EXAMPLES.rglob("*.yaml")] for c in commands(page)})


def arguments(command: str) -> list[str] | None:
    """Words of a command line, less where its output goes; None for a pattern with brackets, dots or alternatives, which is not meant to be typed."""
    command = command.partition(" > ")[0]
    return None if re.search(r"[\[{|]|\.\.\.", command) else shlex.split(command.replace("$PWD/", ""))[1:]


@cache
def group() -> Any:
    return typer.main.get_command(app)


def parsed(words: list[str]) -> dict[str, Any]:
    """Parameters of the subcommand that `words` name. Raises a usage error of the command line."""
    command = group()
    given = list(words)
    while given and getattr(command, "commands", None):
        assert given[0] in command.commands, given[0]
        command, given = command.commands[given[0]], given[1:]
    return dict(command.make_context(command.name, given).params) if given else {}  # a name alone, as in "`parasim execute` needs torch"


@pytest.mark.parametrize("command", [c for c in COMMANDS if arguments(c)])
def test_every_command_on_the_pages_parses(command: str) -> None:
    words = arguments(command)
    assert words
    parsed(words)


def cheap() -> list[str]:
    """Commands of README and tutorial that need nothing made before and take little time."""
    pages = [*commands(ROOT / "README.md"), *commands(ROOT / "docs" / "tutorial.md")]
    made = ("run.yaml", "mine.yaml", "broken.yaml", "RUN", "--out", "parallel.")
    ours = {c for c in pages if (words := arguments(c)) and len(words) > 1 and words[0] in CHEAP}
    return sorted(c for c in ours if "docs/examples" in c or not any(m in c for m in made))


@pytest.mark.parametrize("command", cheap())
def test_cheap_commands_run(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    words = arguments(command)
    assert words
    group().main(words, standalone_mode=False)
    assert capsys.readouterr().out.strip()


def block(page: Path, language: str) -> str:
    """The first code block of a language on a page."""
    match = re.search(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def test_the_five_lines_and_the_python_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = block(ROOT / "README.md", "yaml")
    assert len(text.splitlines()) == 5
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(block(ROOT / "README.md", "python"), "README.md", "exec"), {})
    assert "step time" in capsys.readouterr().out
    assert (tmp_path / "step.svg").stat().st_size > 0


def test_the_readme_lists_what_is_not_supported_yet() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## What is not") :]
    listed = re.findall(r"^\| `([\w.]+)` \|", table[: table.index("Not modelled at all")], re.MULTILINE)
    assert listed == [row.field.replace("asynchronous", "async") for row in NOT_YET]


def test_pictures_are_small() -> None:
    pictures = sorted((ROOT / "docs" / "images").iterdir())
    assert pictures and all(p.stat().st_size < 200_000 for p in pictures)
