"""An artist: a process that loads the drawing libraries while its parent simulates, and then draws a timeline.

Each picture but the first is drawn by a copy of the artist. Talk over pipes: one JSON line in, {"timeline": path, "pictures": [[kind, path, title],
...], "dpi": n}, one line out, "done" or what went wrong. The timeline is a pickle that the parent has just written, without its flows: packing it as a
saved one takes as long as a picture. When its parent ends the artist reads end of file and ends too; it is in a session of its own, so that an interrupt
of the parent does not reach it.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ..collecting import rarely
from ..timeline import Timeline, without_flows

QUICK = 3  # level of compression of PNG, which has no transparency: a fifth larger than at the default 6, in two thirds of the time
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
            self._end()
            self.process.communicate()

    def _end(self) -> None:
        """End the process and its copies."""
        if self.process is not None and self.process.poll() is None:
            with suppress(OSError, AttributeError):  # where there are no groups of processes there are no copies
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()

    def begin(self, timeline: Timeline, scratch: Path, pictures: Sequence[Picture], dpi: int) -> None:
        """Ask for pictures of a timeline, which goes over in the file `scratch`. Raises OSError where that cannot be written."""
        self.asked = (timeline, list(pictures), dpi)
        if self.process is not None and self.process.stdin is not None:
            with open(scratch, "wb") as file:
                pickle.dump(without_flows(timeline), file, protocol=pickle.HIGHEST_PROTOCOL)
            line = json.dumps({"timeline": str(scratch), "pictures": [[p.kind, str(p.path), p.title] for p in pictures], "dpi": dpi})
            try:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            except OSError:
                self._end()

    def finish(self) -> None:
        """Wait for the pictures; draw them here if the process did not."""
        answer = ""
        if self.process is not None:
            try:
                answer, _ = self.process.communicate(timeout=PATIENCE)
            except (subprocess.TimeoutExpired, OSError, ValueError):
                self._end()
        if answer.strip() != "done":
            draw(*self.asked)


def draw(timeline: Timeline, pictures: Sequence[Picture], dpi: int) -> None:
    """Draw in this process."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    from .. import plots

    for picture in pictures:
        figure: Figure = getattr(plots, picture.kind)(timeline, title=picture.title)
        figure.set_dpi(dpi)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        image = Image.frombytes("RGB", canvas.get_width_height(), canvas.buffer_rgba(), "raw", "RGBX")
        image.save(picture.path, dpi=(dpi, dpi), compress_level=QUICK)


def serve() -> None:
    """The process: load what drawing needs, then draw what is asked for, once."""
    from matplotlib.backends import backend_agg

    from . import gantt_plot, memory_plot, style  # noqa: F401

    rarely()
    figure = style.new_figure(1, 1)
    style.title(figure.add_subplot(), "what is drawn first takes longest")
    canvas: Any = backend_agg.FigureCanvasAgg(figure)
    canvas.draw()
    line = sys.stdin.readline()
    if line:
        asked = json.loads(line)
        timeline: Timeline = pickle.loads(Path(asked["timeline"]).read_bytes())
        pictures = [Picture(kind, Path(path), title) for kind, path, title in asked["pictures"]]
        codes = [os.waitpid(helper, 0)[1] for helper in _begun(timeline, pictures, asked["dpi"])]
        if not any(codes):
            sys.stdout.write("done\n")


def _begun(timeline: Timeline, pictures: Sequence[Picture], dpi: int) -> list[int]:
    """Draw the first of the pictures while copies of this process draw one of the others each; the numbers of those, which exit with 0 when they have."""
    if not hasattr(os, "fork"):
        draw(timeline, pictures, dpi)
        return []
    helpers = []
    for picture in pictures[1:]:
        helper = os.fork()
        if not helper:
            code = 1
            with suppress(Exception):
                draw(timeline, [picture], dpi)
                code = 0
            os._exit(code)
        helpers.append(helper)
    draw(timeline, pictures[:1], dpi)
    return helpers


if __name__ == "__main__":
    serve()
