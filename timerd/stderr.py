"""Stderr: where every line of the process goes, and what must never end it.

Who reads the lines may go away, and the disk that they are written to may be full: a line that can't be written is
lost, and nothing else is. It writes to the descriptor itself, so that nothing is left in a buffer for the interpreter
to fail over at its end.
"""

import os
import sys
from contextlib import suppress


class Stderr:
    """A text file as far as `print` and structlog need one."""

    def write(self, text: str) -> int:
        """All of it, or what the system takes."""
        with suppress(OSError, ValueError):
            if sys.stderr is not None:
                os.write(sys.stderr.fileno(), text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


def say(line: str) -> None:
    """One line."""
    Stderr().write(f"{line}\n")


def keep_standard_descriptors() -> None:
    """Open those of 0, 1 and 2 that are closed: else a file of the log gets that number, and lines meant for stderr."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
