"""A failing disk for one process, and a power cut for what it left: a preload library (disk_shim.c).

disk = DiskShim(tmp_path)
timerd = Process(data, env=disk.env)
disk.order("sync", ".log", "eio", last_write_max=APPEND)    # the next sync of an append fails
disk.seen()                                                 # what was done to the log from then on

With `undo=True` it keeps what is not synced yet, and `cut_power(data, rng)`, after a kill -9, takes any part of it
back. It knows file names by their endings and nothing of what is in them.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

from .preload import build

ALWAYS = 1 << 30
APPEND = 4_000
"""An append ends with a small write; a spare is filled in larger ones."""
SECTOR = 512
_HEAD = struct.Struct("<qqqq")


class DiskShim:
    """Skips the test where no C compiler is."""

    def __init__(self, directory: Path, *, undo: bool = False) -> None:
        self._control = directory / "disk_order"
        self._seen = directory / "disk_order.seen"
        self._undo = directory / "undo"
        self._nonce = 0
        self.env = {"LD_PRELOAD": str(build("disk_shim", directory)), "DISK_SHIM": str(self._control)}
        if undo:
            self._undo.mkdir()
            self.env["DISK_UNDO"] = str(self._undo)

    def order(
        self, call: str, name: str, action: str, *, times: int = 1, ms: int = 0, last_write_max: int = -1
    ) -> None:
        """From now on the next `times` calls on files whose name ends so fail (`eio`, `enospc`), are `short` or `slow`.

        `stuck` is slow, too, and is among what is `seen`.

        `call`: "sync" or "write". `name` "dir": a directory.
        """
        self._nonce += 1
        self._write(f"{self._nonce} {call} {name} {last_write_max} {action} {times} {ms}")

    def clear(self) -> None:
        """No order any more."""
        self._write("")

    def seen(self) -> list[str]:
        """The faults, and what was done to log and bodies behind the first: "fault sync 000000000001.log"."""
        return self._seen.read_text().splitlines() if self._seen.exists() else []

    def struck(self) -> int:
        """How many faults there were."""
        return sum(line.startswith("fault") for line in self.seen())

    def _write(self, text: str) -> None:
        new = self._control.with_suffix(".new")
        new.write_text(text)
        new.replace(self._control)

    # ---- power

    def unsynced(self) -> int:
        """Writes that no sync has covered."""
        return sum(len(_records(path.read_bytes())) for path in self._undo.iterdir())

    def cut_power(self, data: Path, rng: Random) -> int:
        """Take back what was not synced: all of it, or any sectors of it. How many writes it was. The process is dead.

        Each file decides by itself, as its pages do.
        """
        total = 0
        for path in sorted(self._undo.iterdir()):
            records = _records(path.read_bytes())
            path.unlink()
            target = data / path.name
            if not records or not target.exists():
                continue
            total += len(records)
            taken = rng.choice((1.0, rng.random()))
            with target.open("r+b") as file:
                for offset, length, held, _ in reversed(records):
                    old = held.ljust(length, b"\0")
                    for start, end in _sectors(offset, offset + length):
                        if rng.random() < taken:
                            file.seek(start)
                            file.write(old[start - offset : end - offset])
                if taken == 1.0:
                    file.truncate(min(records[0][3], target.stat().st_size))
        return total


def _sectors(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The range, cut at the bounds of sectors."""
    while start < end:
        upto = min(end, (start // SECTOR + 1) * SECTOR)
        yield start, upto
        start = upto


def _records(data: bytes) -> list[tuple[int, int, bytes, int]]:
    """(offset, length, what was there, size of the file) of each write; one that the kill cut short was never done."""
    found = []
    at = 0
    while at + _HEAD.size <= len(data):
        offset, length, held, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + held > len(data):
            break
        found.append((offset, length, data[at : at + held], size))
        at += held
    return found
