"""The lab's first process, which `wrapper` starts: `python -m validation.lab OPTIONS`."""

from __future__ import annotations

import signal
import sys

from parasim.errors import ParasimError

from .session import Options, run
from .wrapper import inside

INTERRUPTED = 130


def main() -> int:
    """Run what the one argument asks for; the exit code."""
    if not inside() or len(sys.argv) != 2:
        print("error: start the lab with: python -m validation lab", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the wrapper's way to end it, also below a shell that ignores interrupts
    try:
        run(Options.read(sys.argv[1]))
    except ParasimError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: the network and its processes are gone", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
