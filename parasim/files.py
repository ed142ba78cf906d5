"""Files that appear only when they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import Malformed


@contextmanager
def whole(path: Path, flag: str = "") -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place at the end; where writing fails nothing of it is left. What is no regular file (a
    device, a pipe) is written to as it is. Raises Malformed, with the `flag` that named the file, where it cannot be written."""
    direct = path.exists() and not path.is_file()
    draft = path if direct else path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        yield draft
        if not direct:
            os.replace(draft, path)
    except OSError as error:
        raise Malformed(f"{flag}{path}: cannot be written ({error.strerror or error})") from error
    finally:
        if not direct:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
