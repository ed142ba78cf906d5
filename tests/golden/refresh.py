"""`python -m tests.golden.refresh` writes every golden file anew and says which of them changed."""

from __future__ import annotations

from .shapes import GOLDEN, HERE


def main() -> None:
    """Write the files."""
    for name, make in GOLDEN.items():
        path, text = HERE / name, make() + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"changed {name}")


if __name__ == "__main__":
    main()
