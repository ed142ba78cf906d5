"""The rows of a sweep in a file that survives a kill: sqlite, keyed by content, written by one process only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from ..errors import Malformed, Unparsable
from .sweep_point import Row

FORM = "parasim.sweep/1"


class Rows:
    """A table key -> row in the file at `path`; `with` closes it. Everything that `add` returned from is on the disk.

    Raises Malformed where the file exists without `resume` or cannot be written, Unparsable where it is no whole table of rows.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        if path.exists() and not resume:
            raise Malformed(f"{path}: holds an earlier sweep; give --resume to go on with it, or remove it")
        fresh = not path.exists()
        if not fresh and not path.is_file():
            raise Malformed(f"{path}: is no regular file; the rows of a sweep are due")
        if not fresh and not path.stat().st_size:
            raise self._broken("it is empty")
        try:
            self.connection = sqlite3.connect(path)
        except sqlite3.Error as error:
            raise Malformed(f"{path}: cannot be opened ({error})") from None
        try:
            self._begin() if fresh else self._verify()
        except sqlite3.OperationalError as error:
            self.connection.close()
            raise Malformed(f"{path}: cannot be read or written ({error})") from None
        except sqlite3.DatabaseError as error:
            self.connection.close()
            raise self._broken(str(error)) from None
        except Unparsable:
            self.connection.close()
            raise

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def _broken(self, why: str) -> Unparsable:
        return Unparsable(f"{self.path}: is no whole file of rows, perhaps cut short ({why}); remove it to begin anew")

    def _begin(self) -> None:
        with self.connection:
            self.connection.execute("create table form (name text)")
            self.connection.execute("create table rows (key text primary key, row text not null) without rowid")
            self.connection.execute("insert into form values (?)", (FORM,))

    def _verify(self) -> None:
        tables = {name for (name,) in self.connection.execute("select name from sqlite_master where type = 'table'")}
        if not {"form", "rows"} <= tables or self.connection.execute("select name from form").fetchall() != [(FORM,)]:
            raise self._broken(f"not of the form {FORM}")
        pages, size = (self.connection.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if self.path.stat().st_size < pages * size:  # sqlite reads what is missing of the last page as zeros
            raise self._broken(f"{self.path.stat().st_size} of {pages * size} bytes are there")
        found = self.connection.execute("pragma integrity_check").fetchone()[0]
        if found != "ok":
            raise self._broken(found.splitlines()[-1])

    def add(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Keep rows. Raises Malformed where the disk is full."""
        try:
            with self.connection:
                self.connection.executemany("insert or replace into rows values (?, ?)", [(k, json.dumps(r, allow_nan=False)) for k, r in rows])
        except sqlite3.Error as error:
            raise Malformed(f"{self.path}: cannot be written ({error})") from None

    def all(self) -> dict[str, Row]:
        """Every row by key. Raises Unparsable where they cannot be read."""
        try:
            return {key: json.loads(text) for key, text in self.connection.execute("select key, row from rows")}
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._broken(str(error)) from None
