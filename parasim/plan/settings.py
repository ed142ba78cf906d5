"""Settings as they are written on the command line: `zero.stage=2,batch.micro=2`, and ranges `parallel.tp=1..8:2x`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import Malformed
from ..words import known

Setting = tuple[str, str]  # path in the run file, value as YAML
_RANGE = re.compile(r"^(?P<low>-?\d+(?:\.\d+)?)\.\.(?P<high>-?\d+(?:\.\d+)?)(?::(?P<step>\d+(?:\.\d+)?)(?P<times>x?))?(?P<unit>\s*[A-Za-z%/]*)$")
_OPEN, _CLOSE = "[{(", "]})"
MOST_VALUES = 4096  # of one range: beyond that a typo is likelier


def split(text: str) -> list[str]:
    """`text` cut at its commas, but for those inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [p.strip() for p in parts]


def variant(text: str) -> tuple[Setting, ...]:
    """The settings of one `--variant`. Raises Malformed."""
    return tuple(_setting(part, f"--variant {text}") for part in split(text))


def sweep(text: str, flag: str = "--sweep") -> tuple[str, tuple[str, ...]]:
    """Path and values of `k=a..b:2x` (times two each), `k=a..b:2` (two more each), `k=a..b` (one more each) or `k=a,b,c`; a unit follows the range.

    Raises Malformed.
    """
    path, value = _setting(text, f"{flag} {text}")
    found = _RANGE.match(value)
    if found is None:
        if ".." in value:
            raise Malformed(f"{flag} {text}: a range is written a..b, a..b:2 or a..b:2x, such as {path}=1..8:2x")
        return path, tuple(split(value))
    return path, tuple(f"{x:.15g}{found['unit']}" for x in _steps(text, flag, found))


def _steps(text: str, flag: str, found: re.Match[str]) -> Iterator[float]:
    at, high, step, times = float(found["low"]), float(found["high"]), float(found["step"] or 1), bool(found["times"])
    if high < at or step <= (1 if times else 0) or (times and at <= 0):
        raise Malformed(f"{flag} {text}: a range rises, from a to b, by adding more than 0 or multiplying a positive a by more than 1")
    for _ in range(MOST_VALUES):
        if at > high * (1 + 1e-12):
            return
        yield at
        at = at * step if times else at + step
    raise Malformed(f"{flag} {text}: is more than {MOST_VALUES} values")


def _setting(text: str, origin: str) -> Setting:
    path, equals, value = text.partition("=")
    if not equals or not path.strip() or not value.strip():
        raise Malformed(f"{origin}: a setting is written path=value, such as zero.stage=2")
    return path.strip(), value.strip()


def comparison(text: str, names: tuple[str, ...]) -> tuple[str, str, str]:
    """Name, sign (<=, >=, <, >, =) and value of one `--constraint`. Raises Malformed."""
    found = re.match(r"^\s*([A-Za-z_.]+)\s*(<=|>=|==|=|<|>)\s*(.+?)\s*$", text)
    if found is None:
        raise Malformed(f"--constraint {text}: is written name<=value, with one of <=, >=, <, >, =, such as peak_memory_bytes<=70GiB")
    return known(found[1], names, "constraint"), found[2].replace("==", "="), found[3]
