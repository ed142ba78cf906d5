"""Who may import whom: lower layers never see higher ones, some rooms never see each other, heavy libraries stay in their room."""

from __future__ import annotations

import networkx as nx

from .source import imports, modules

# Lowest first. Rooms of a layer that stand in one tuple may import each other (without cycles); different tuples of a layer may not.
LAYERS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("units", "errors", "provenance", "documents", "files", "words", "hashes", "collecting", "markup", "frames"),),
    (("model",), ("program",), ("topology",)),
    (("parallel", "schedules"), ("timeline", "timeline_columns", "timeline_files", "timeline_frames"), ("cost",)),
    (("config",),),
    (("lowering",), ("collectives",)),
    (("sim",), ("executor",)),
    (("memory", "report", "comparison", "plots", "html", "traces"),),
    (("plan",),),
    (("api", "jobs", "calibrating", "catalogs", "tracing", "pages"),),
    (("cli", "cli_common", "cli_facts", "cli_traces", "cli_calibrate", "__main__"),),
)
BANNED = {
    "lowering": {"topology", "collectives", "cost"},
    "sim": {"model", "parallel", "schedules", "config", "executor"},
    "executor": {"model", "parallel", "schedules", "config", "sim"},
}
ONLY_IN = {
    "simpy": {"sim"},
    "torch": {"executor"},
    "matplotlib": {"plots"},
    "pandas": {"frames"},
    "yaml": {"documents"},  # one reading of scalars, one wording of faults
    "difflib": {"words", "units"},  # in a unit the case has a meaning
}
# Imports inside a function that close a cycle on purpose: both modules are loaded by then.
LATE = {
    ("parasim.program.workload", "parasim.program.edges"),  # Program.resolved
    ("parasim.timeline", "parasim.timeline_files"),  # Timeline.save, Timeline.load
    ("parasim.report.values", "parasim.report.text"),  # str(Report)
    ("parasim.report.values", "parasim.report.notebook"),  # Report.to_pandas
    ("parasim.timeline", "parasim.timeline_frames"),  # Timeline.to_pandas
}
RANK = {room: (level, group) for level, layer in enumerate(LAYERS) for group, rooms in enumerate(layer) for room in rooms}


def _room(module: str) -> str:
    """The room of a module: parasim.sim.engine -> sim; the package itself -> ""."""
    return module.split(".")[1] if "." in module else ""


def _inner() -> list[tuple[str, str, str]]:
    """(room, room imported, text) of every import from one room into another; the package's own lazy table of names is not a room."""
    found = [(_room(i.source), _room(i.target), str(i)) for i in imports() if i.target.partition(".")[0] == "parasim"]
    return [(a, b, text) for a, b, text in found if a and b and a != b]


def test_every_room_has_a_layer() -> None:
    assert {_room(name) for name in modules()} - {""} == RANK.keys()


def test_lower_layers_never_import_higher_ones() -> None:
    wrong = [text for a, b, text in _inner() if RANK[b][0] > RANK[a][0] or (RANK[b][0] == RANK[a][0] and RANK[b][1] != RANK[a][1])]
    assert wrong == []


def test_only_the_version_is_taken_from_the_package_itself() -> None:
    """A room that imported a public name from `parasim` would reach the top layer from below."""
    assert [str(i) for i in imports() if i.target == "parasim" and i.names != ("__version__",)] == []


def test_rooms_that_never_see_each_other() -> None:
    assert [text for a, b, text in _inner() if b in BANNED.get(a, set())] == []


def test_libraries_that_stay_in_their_room() -> None:
    libraries = [(i, i.target.partition(".")[0]) for i in imports()]
    assert [str(i) for i, library in libraries if library in ONLY_IN and _room(i.source) not in ONLY_IN[library]] == []


def test_parasim_never_imports_validation_or_tests() -> None:
    assert [str(i) for i in imports() if i.target.partition(".")[0] in ("validation", "tests")] == []


def test_modules_import_each_other_without_cycles() -> None:
    """Imports under TYPE_CHECKING do not run. An import from outside a package runs the package's __init__ too."""
    graph = nx.DiGraph()
    for i in imports():
        if i.typing_only or i.target not in modules() or i.target == "parasim" or (i.source, i.target) in LATE:
            continue
        graph.add_edge(i.source, i.target)
        package = modules()[i.target].package
        if package != "parasim" and not f"{i.source}.".startswith(f"{package}."):
            graph.add_edge(i.source, package)
    assert [" -> ".join(sorted(knot)) for knot in nx.strongly_connected_components(graph) if len(knot) > 1] == []
    assert list(nx.selfloop_edges(graph)) == []
