"""A timerd as in a container: process, mount and (without root) user namespaces of its own, one volume, its own path.

volume.mkdir()
one, two = contained(volume, tmp_path / "one"), contained(volume, tmp_path / "two")

No container engine is needed, and none would show more: what two containers on one volume share is the file system.
"""

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from .process import Process

NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
MOUNT = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


class Contained(Process):
    """Signals go to the process inside, not to the one that made its namespaces."""

    def signal(self, number: int) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        inside = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in map(int, inside or [self.pid]):
            os.kill(pid, number)


def contained(volume: Path, path: Path) -> Contained:
    """One that has the volume at `path`. Skips the test where namespaces are not permitted."""
    path.mkdir()
    return Contained(path, inside=("unshare", *_namespaces(), "sh", "-c", MOUNT, "sh", str(volume), str(path)))


@cache
def _namespaces() -> tuple[str, ...]:
    for flags in (NAMESPACES, ("--map-root-user", *NAMESPACES)):
        try:
            tried = subprocess.run(
                ["unshare", *flags, "sh", "-c", "mount --bind /tmp /tmp"], capture_output=True, timeout=30, check=False
            )
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return flags
    pytest.skip("no namespaces can be made here (neither as root nor in a user namespace)")
