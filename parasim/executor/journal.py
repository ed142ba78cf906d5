"""Samples on disk as they are measured, a line of JSON each, so that a run that ends early loses nothing and a second run goes on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import Malformed, Unparsable
from ..files import whole

SCHEMA = "parasim.samples/1"
Measure = Callable[[], Sequence[float]]


class Journal:
    """The samples of named cases. `machine` says what they were measured on and with: a file that says otherwise is not gone on with."""

    def __init__(self, path: Path, machine: Mapping[str, str]) -> None:
        self.path, self.machine = path, dict(machine)
        self.samples: dict[str, list[list[float]]] = {}
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise Malformed(f"{path}: cannot be read ({error})") from None
        lines, _, torn = text.rpartition("\n")  # what a crash cut short is measured again
        if lines:
            self._read(lines.split("\n"))
        if torn or not lines:
            self._rewrite(lines)

    def _read(self, lines: list[str]) -> None:
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if number > 1:
                    self.samples.setdefault(str(entry["case"]), []).append([float(x) for x in entry["sample"]])
                    continue
                schema, machine = entry["schema"], entry["machine"]
            except (ValueError, KeyError, TypeError):
                raise Unparsable(f"{self.path}:{number}: is no line of samples; remove the file to measure anew") from None
            if schema != SCHEMA or machine != self.machine:
                differing = sorted(k for k in {*machine, *self.machine} if machine.get(k) != self.machine.get(k)) if schema == SCHEMA else ["schema"]
                said = ", ".join(f"{k}={machine.get(k)} (now {self.machine.get(k)})" for k in differing)
                raise Malformed(f"{self.path}: was measured otherwise: {said}; remove it or give another --out")

    def _rewrite(self, lines: str) -> None:
        """The lines that are whole, or the first one."""
        head = json.dumps({"schema": SCHEMA, "machine": self.machine})
        with whole(self.path) as draft:
            draft.write_text((lines or head) + "\n", encoding="utf-8")

    def add(self, case: str, sample: Sequence[float]) -> None:
        """Keep a sample, on disk before this returns. Raises Malformed where the disk takes no more."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"case": case, "sample": [float(x) for x in sample]}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Malformed(f"{self.path}: cannot be written ({error.strerror or error})") from None
        self.samples.setdefault(case, []).append([float(x) for x in sample])

    def collect(self, cases: Mapping[str, Measure], seconds: float, rounds: int, tell: Callable[[str], None]) -> None:
        """Measure in rounds over all cases, so that a busy second hits all a little, until each has `rounds` samples or `seconds` have passed.

        At least one sample is taken, unless nothing is left to do.
        """
        end, started = time.monotonic() + seconds, False
        for n in range(rounds):
            todo = [name for name in cases if len(self.samples.get(name, ())) <= n]
            for name in todo:
                if started and time.monotonic() > end:
                    tell(f"{seconds:g} s are over in round {n + 1} of {rounds}; run again to go on")
                    return
                self.add(name, cases[name]())
                started = True
            if todo:
                tell(f"round {n + 1} of {rounds}: {len(cases)} cases")
