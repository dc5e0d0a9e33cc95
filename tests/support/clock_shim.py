"""A shifted wall clock for one process: a preload library that leaves CLOCK_MONOTONIC and CLOCK_BOOTTIME alone.

clock = ClockShim(tmp_path)
timerd = Process(data, env=clock.env)
clock.shift(days=10)
"""

import datetime
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long offset_s(void) {  /* read each time, so that a shift is seen at once */
    const char *path = getenv("CLOCK_SHIM");
    char text[32] = {0};
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atoll(text);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int result = syscall(SYS_clock_gettime, id, at);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += offset_s();
    return result;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec at;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &at);
    out->tv_sec = at.tv_sec;
    out->tv_usec = at.tv_nsec / 1000;
    return 0;
}
"""


class ClockShim:
    """Skips the test where no C compiler is."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("the clock shim is compiled when it is needed, and there is no C compiler")
        source, library = directory / "clock_shim.c", directory / "clock_shim.so"
        source.write_text(SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self._offset = directory / "clock_offset"
        self.shift()
        self.env = {"LD_PRELOAD": str(library), "CLOCK_SHIM": str(self._offset)}

    def shift(self, **by: float) -> None:
        """The wall clock is so much ahead from now on (`datetime.timedelta` arguments)."""
        new = self._offset.with_suffix(".new")
        new.write_text(str(round(datetime.timedelta(**by).total_seconds())))
        new.replace(self._offset)
