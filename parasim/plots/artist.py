"""An artist: a process that loads the drawing libraries while its parent simulates, and then draws a saved timeline.

Talk over pipes: one JSON line in, {"timeline": path, "pictures": [[kind, path, title], ...], "dpi": n}, one line out, "done" or what went wrong. When
its parent ends the artist reads end of file and ends too; it is in a session of its own, so that an interrupt of the parent does not reach it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

QUICK = {"compress_level": 3}  # PNG: a third larger than the default 6, in half the time
PATIENCE = 60.0  # seconds


class Picture(NamedTuple):
    """A plot of `parasim.plots` by name, the PNG it goes to, its title ("": none)."""

    kind: str
    path: Path
    title: str = ""


class Artist:
    """The process, from the moment it is made; `with` ends it. Where none can be had, pictures are drawn in this process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        with suppress(OSError):
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Artist:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def begin(self, timeline: Path, pictures: Sequence[Picture], dpi: int) -> None:
        """Ask for pictures of a saved timeline."""
        self.asked = (timeline, list(pictures), dpi)
        if self.process is not None and self.process.stdin is not None:
            line = json.dumps({"timeline": str(timeline), "pictures": [[p.kind, str(p.path), p.title] for p in pictures], "dpi": dpi})
            try:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            except OSError:
                self.process.kill()

    def finish(self) -> None:
        """Wait for the pictures; draw them here if the process did not."""
        answer = ""
        if self.process is not None:
            try:
                answer, _ = self.process.communicate(timeout=PATIENCE)
            except (subprocess.TimeoutExpired, OSError, ValueError):
                self.process.kill()
        if answer.strip() != "done":
            draw(*self.asked)


def draw(timeline: Path, pictures: Sequence[Picture], dpi: int) -> None:
    """Draw in this process."""
    from .. import plots
    from ..timeline import Timeline

    loaded = Timeline.load(timeline)
    for picture in pictures:
        figure = getattr(plots, picture.kind)(loaded, title=picture.title)
        figure.savefig(picture.path, dpi=dpi, pil_kwargs=QUICK)


def serve() -> None:
    """The process: load what drawing needs, then draw what is asked for, once."""
    from matplotlib.backends import backend_agg  # noqa: F401

    from . import gantt_plot, memory_plot  # noqa: F401

    line = sys.stdin.readline()
    if line:
        asked = json.loads(line)
        draw(Path(asked["timeline"]), [Picture(kind, Path(path), title) for kind, path, title in asked["pictures"]], asked["dpi"])
        sys.stdout.write("done\n")


if __name__ == "__main__":
    serve()
