"""What a search has to say: as JSON and as text."""

from __future__ import annotations

from typing import Any

from ..units import format_memory, format_seconds
from .binding import shares
from .objective import Objective
from .search import Found, Search

SCHEMA = "parasim.search/1"
MISSES = 5


def to_json(s: Search) -> dict[str, Any]:
    """The contract `parasim.search/1`."""
    return {
        "schema": SCHEMA,
        "devices": s.devices,
        "objective": s.objective.name,
        "enumerated": s.space.enumerated,
        "refused": sum(s.refused.values()),
        "refused_by_reason": dict(s.refused.most_common()),
        "bounded": s.bounded,
        "simulated": len(s.found),
        "proven": s.proven,
        "gap": s.gap,
        "top": [_row(f, s.objective) for f in s.best[: s.top]],
        "pareto": [_row(f, s.objective) for f in s.pareto],
        "near_misses": [{"layout": m.candidate.overrides, "name": m.candidate.name, "excess_bytes": m.excess} for m in _nearest(s)],
        "why": why(s),
        "varied": {k: list(v) for k, v in s.asked.items()},
    }


def _row(f: Found, objective: Objective) -> dict[str, Any]:
    d = f.candidate.layout.degrees
    degrees = {a: getattr(d, a) for a in ("tp", "cp", "ep", "dp", "pp")}
    return {
        "layout": {**degrees, **{k: v for k, v in f.candidate.settings.items() if not k.startswith("parallel.")}},
        "name": f.candidate.name,
        "set": f.candidate.overrides,
        "step_time_s": f.report.step_time,
        "mfu": f.report.mfu,
        "peak_memory_bytes": f.report.memory.peak.nbytes,
        "bound_s": f.bound if f.score == f.report.step_time else None,
        "time_to_target_s": objective.to_target(f.report),
    }


def _nearest(s: Search) -> list[Any]:
    return sorted(s.misses, key=lambda m: (m.excess, m.candidate.name))[:MISSES]


def why(s: Search) -> str:
    """Why the winner wins against the next one: the largest differences of their steps by part."""
    if len(s.best) < 2:
        return ""
    first, second = s.best[0].report, s.best[1].report
    parts = {p: (shares(second)[p] * second.step_time - shares(first)[p] * first.step_time) for p in shares(first)}
    told = sorted((p for p in parts if parts[p]), key=lambda p: -abs(parts[p]))[:3]
    words = ", ".join(f"{p} {'+' if parts[p] > 0 else '-'}{format_seconds(abs(parts[p]))}" for p in told)
    return f"{s.best[1].candidate.name} takes {format_seconds(second.step_time - first.step_time)} more: {words}" if words else ""


def as_text(s: Search) -> str:
    """The page that `parasim search` prints."""
    reasons = ", ".join(f"{why} {n}" for why, n in s.refused.most_common())
    counts = f"{s.space.enumerated} layouts: {sum(s.refused.values())} refused ({reasons}), {s.bounded} bounded away, {len(s.found)} simulated"
    verdict = "proven: the bound of no other layout is below the first" if s.proven else f"not proven: another could be better by up to {100 * s.gap:.2f} %"
    rows = [("", "layout", "step", "MFU", "peak memory", "to target, per fewest step" if s.objective.critical else "")]
    for i, f in enumerate(s.best[: s.top], 1):
        mfu = "-" if f.report.mfu is None else f"{100 * f.report.mfu:.1f} %"
        aim = s.objective.to_target(f.report)
        peak = format_memory(round(f.report.memory.peak.nbytes))
        rows.append((str(i), f.candidate.name, format_seconds(f.report.step_time), mfu, peak, "" if aim is None else format_seconds(aim)))
    widths = [max(len(r[c]) for r in rows) for c in range(6)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    front = "; ".join(f"{f.candidate.name} ({format_seconds(f.report.step_time)}, {format_memory(round(f.report.memory.peak.nbytes))})" for f in s.pareto)
    near = "; ".join(f"{m.candidate.name} by {format_memory(round(m.excess))}" for m in _nearest(s))
    return "\n".join(
        [
            f"{s.name} on {s.devices} devices, objective {s.objective.name}",
            counts,
            verdict,
            *lines,
            *([f"why: {why(s)}"] if why(s) else []),
            f"time against memory (of the simulated): {front}",
            *([f"nearly fit: {near}"] if near else []),
            "the first as settings: " + " ".join(f"--set {o}" for o in s.best[0].candidate.overrides),
        ]
    )
