"""A disk that stalls: a preload library under which every fsync and fdatasync of a process waits as long as it is told.

disk = SlowDisk(tmp_path)
timerd = Process(data, env=disk.env)
disk.stall(2.0)     # every sync takes two seconds more
disk.stall(0)       # none does any more; those under way end at once

It needs a C compiler (`SlowDisk.possible`).
"""

import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long told_ms(void) {  /* read each time, so that a stall begins and ends at once */
    const char *path = getenv("SLOW_DISK");
    char text[32] = {0};
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atol(text);
}

static void stall(void) {
    struct timespec step = {0, 5000000};
    for (long waited = 0; waited < told_ms(); waited += 5) nanosleep(&step, 0);
}

int fsync(int file) { stall(); return syscall(SYS_fsync, file); }
int fdatasync(int file) { stall(); return syscall(SYS_fdatasync, file); }
"""


class SlowDisk:
    """One library and one control file; `env` is what the process is started with."""

    def __init__(self, directory: Path) -> None:
        compiler = self.possible()
        assert compiler, "the library is compiled when it is needed, and there is no C compiler"
        source, library = directory / "slow_disk.c", directory / "slow_disk.so"
        source.write_text(SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self._told = directory / "slow_disk_ms"
        self.stall(0)
        self.env = {"LD_PRELOAD": str(library), "SLOW_DISK": str(self._told)}

    @staticmethod
    def possible() -> str | None:
        """The compiler, if there is one."""
        return shutil.which("gcc") or shutil.which("cc")

    def stall(self, seconds: float) -> None:
        """From now on a sync takes so much longer."""
        new = self._told.with_suffix(".new")
        new.write_text(str(round(seconds * 1000)))
        new.replace(self._told)
