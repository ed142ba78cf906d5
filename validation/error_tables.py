"""Parts of the page of errors, each from the rows of a table: sources and what is asked of them, order of layouts, memory, worst rows and their causes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from .predict import DATA
from .score import STEP

Row = Mapping[str, Any]
WORST, EACH = 20, 3  # rows shown, and of one source at most
NEAR = 0.2  # an error up to here counts as near
LEAST = 8  # layouts of one model on as many devices from which on their order is judged
NOISY = "ultrascale_nanotron"  # its repeated steps differ by up to 21 %
SCORE, WORST_SOURCE, BIAS, SHARE, RANK = 0.06, 0.09, 0.06, 0.9, 0.9
NOISY_SHARE, NOISY_RANK = 0.8, 0.75


def sources(tree: Row, blind: Mapping[str, tuple[float, float]], bare: Mapping[str, Any] | None) -> Iterator[str]:
    """A line per source that has steps, and their mean. `blind`: median and bias of the first scoring; `bare`: by source, with nothing fitted."""
    yield "| source | steps | refused | blind: median / bias | now: median / bias | 90 % are within | within 20 % | one MFU | nothing fitted |"
    yield "|---|---|---|---|---|---|---|---|---|"
    judged = {name: s for name, s in tree["by_source"].items() if s["n"]}
    plain = {name: (bare or {}).get(name, {}).get("median_abs_error") for name in judged}
    for name, s in judged.items():
        was = f"{blind[name][0]:.1%} / {blind[name][1]:+.1%}" if name in blind else "refused"
        now = f"{s['median_abs_error']:.1%} / {s['bias']:+.1%}"
        near = f"{share(steps(tree['rows'], name)):.0%}"
        yield _cells(name, s["n"], s["refused"], was, now, _percent(s["p90_abs_error"]), near, _percent(s["flat_mfu_median"]), _percent(plain[name]))
    first = _mean([blind[name][0] for name in judged if name in blind])
    flat, none = _mean([s["flat_mfu_median"] for s in judged.values()]), _mean(list(plain.values()))
    count, refused = (sum(s[key] for s in judged.values()) for key in ("n", "refused"))
    yield _cells("**mean of sources**", count, refused, _percent(first), f"**{tree['score']:.1%}**", "", "", _percent(flat), _percent(none))


def asked(tree: Row) -> Iterator[str]:
    """What is asked of the predictions, and which of it they meet."""
    judged = {name: s for name, s in tree["by_source"].items() if s["n"]}
    medians = {name: s["median_abs_error"] for name, s in judged.items()}
    biases = {name: s["bias"] for name, s in judged.items()}
    near = {name: share(steps(tree["rows"], name)) for name in judged}
    low = {name: f"{x:.0%}" for name, x in near.items() if x < (NOISY_SHARE if name == NOISY else SHARE)}
    ranks = [(g, n, r) for g, source, n, _, r in orders(tree["rows"]) if r < (NOISY_RANK if source == NOISY else RANK)]
    yield from ("| asked | met | not by |", "|---|---|---|")
    yield _asked(f"mean over sources of the median error at most {SCORE:.0%}", {} if tree["score"] <= SCORE else {"all": f"{tree['score']:.1%}"})
    yield _asked(f"no source above {WORST_SOURCE:.0%}", {n: f"{x:.1%}" for n, x in medians.items() if x > WORST_SOURCE})
    yield _asked(f"bias of every source within {BIAS:.0%}", {n: f"{x:+.1%}" for n, x in biases.items() if abs(x) > BIAS})
    yield _asked(f"{SHARE:.0%} of the steps of a source within {NEAR:.0%} ({NOISY}: {NOISY_SHARE:.0%})", low)
    yield _asked(f"layouts in order of time per token: rank correlation at least {RANK} ({NOISY}: {NOISY_RANK})", {g: f"{r:.2f}" for g, _, r in ranks})


def _asked(what: str, missed: Mapping[str, str]) -> str:
    return _cells(what, "no" if missed else "yes", ", ".join(f"{name} {value}" for name, value in missed.items()) or "-")


def ranking(rows: Sequence[Row]) -> Iterator[str]:
    """The order of layouts, per group of at least LEAST of them."""
    yield from ("| model and devices | source | layouts | rank correlation of step times | of times per token |", "|---|---|---|---|---|")
    for group, source, n, by_step, by_token in orders(rows):
        yield _cells(group, source, n, f"{by_step:.2f}", f"{by_token:.2f}")


def orders(rows: Sequence[Row]) -> list[tuple[str, str, int, float, float]]:
    """(group, source, layouts, Spearman's correlation of predicted and measured step times, and of times per token) of every group of LEAST layouts
    of one source."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in steps(rows):
        if row.get("group") and row.get("tokens"):
            groups.setdefault((row["group"], row["source"]), []).append(row)
    out = []
    for (group, source), found in groups.items():
        if len(found) >= LEAST:
            pairs = np.array([(row["measured"], row["predicted"]) for row in found])
            tokens = np.array([[row["tokens"]] for row in found])
            out.append((group, source, len(found), spearman(*pairs.T), spearman(*(pairs / tokens).T)))
    return out


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Pearson's correlation of the ranks, equal values sharing the mean of theirs; 0 where one of them is constant."""
    x, y = _ranks(a), _ranks(b)
    spread = float(x.std() * y.std())
    return float(((x - x.mean()) * (y - y.mean())).mean()) / spread if spread else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def memory(tree: Row) -> Iterator[str]:
    """What is no step time, by kind: memory of tensors, memory that the allocator reserved, layers and utilisation."""
    kinds = {"peak_memory_bytes": "peak of tensors", "reserved_memory_bytes": "reserved by the allocator"}
    yield from ("| what | source | rows | median | bias | 90 % are within |", "|---|---|---|---|---|---|")
    found = [(quantity, name, o) for name, s in tree["by_source"].items() for quantity, o in s["others"].items()]
    for quantity, name, o in sorted(found, key=lambda item: ([*kinds, item[0]].index(item[0]), item[0])):
        what = kinds.get(quantity, quantity)
        yield _cells(what, name, o["n"], _percent(o["median_abs_error"]), f"{o['bias']:+.1%}", _percent(o["p90_abs_error"]))


def worst(rows: Sequence[Row]) -> Iterator[str]:
    """The rows of the largest errors, EACH of a source at most, with what is suspected behind them."""
    yield from ("| row | measured | predicted | error | suspected | assumed of it |", "|---|---|---|---|---|---|")
    shown: list[Row] = []
    for row in sorted(steps(rows), key=lambda r: -abs(r["error"])):
        if sum(r["source"] == row["source"] for r in shown) < EACH:
            shown.append(row)
    known = causes()
    for row in shown[:WORST]:
        assumed = "; ".join(row["assumptions"]) or "-"
        yield _cells(row["id"], f"{row['measured']:.4g} s", f"{row['predicted']:.4g} s", f"{row['error']:+.0%}", cause(row, known), assumed)


def causes() -> list[Row]:
    """data/causes.yaml."""
    tree: Mapping[str, list[Row]] = yaml.safe_load((DATA / "causes.yaml").read_text(encoding="utf-8"))
    return tree["causes"]


def cause(row: Row, known: Sequence[Row]) -> str:
    """The first of `known` that holds for `row`, in words."""
    return next((str(entry["cause"]) for entry in known if _holds(entry, row)), "not known")


def _holds(entry: Row, row: Row) -> bool:
    """Whether everything that an entry asks for is so."""
    error = row["error"]
    return (
        re.search(str(entry.get("source", "")), row["source"]) is not None
        and re.search(str(entry.get("profile", "")), row["profile"]) is not None
        and re.search(str(entry.get("assumed", "")), "; ".join(row["assumptions"])) is not None
        and entry.get("error") in (None, "+" if error > 0 else "-")
        and abs(error) >= entry.get("beyond", 0.0)
        and (row.get("fill") or 0.0) >= entry.get("fill", 0.0)
        and row["measured"] <= entry.get("below", float("inf"))
    )


def steps(rows: Sequence[Row], source: str | None = None) -> list[Row]:
    """The rows that hold a predicted step time, of one source or of all."""
    return [row for row in rows if row["quantity"] == STEP and not row["refused"] and source in (None, row["source"])]


def share(rows: Sequence[Row]) -> float:
    """Part of the rows that are near."""
    return sum(1 for row in rows if abs(row["error"]) <= NEAR) / len(rows)


def middle(orders: Sequence[tuple[str, str, int, float, float]]) -> float | None:
    """Median of the rank correlations per token."""
    return median(by_token for *_, by_token in orders) if orders else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _cells(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
