"""The disk of this machine, and that the fake one has its ways."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.sim.disk import FakeDisk
from timerd_storage.disk import Disk, OsDisk


@pytest.fixture(params=["os", "fake"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return OsDisk() if request.param == "os" else FakeDisk()


def test_what_is_written_can_be_read(disk: Disk, tmp_path: Path) -> None:
    disk.make_directory(tmp_path / "a" / "b")
    path = tmp_path / "a" / "b" / "file"
    file = disk.open(path, create=True)
    disk.sync_directory(path.parent)
    disk.write(file, 10, b"hello")
    disk.sync(file)
    assert disk.size(file) == 15
    assert disk.read(file, 0, 100) == bytes(10) + b"hello"
    assert disk.read(file, 12, 2) == b"ll"
    assert disk.read(file, 100, 5) == b""
    disk.close(file)
    file = disk.open(path)
    disk.truncate(file, 12)
    assert disk.read(file, 10, 9) == b"he"
    disk.allocate(file, 0, 5000)
    assert disk.size(file) == 5000
    assert disk.read(file, 10, 4990) == b"he" + bytes(4988)
    disk.close(file)
    assert disk.list_directory(path.parent) == ["file"]
    disk.unlink(path)
    assert disk.list_directory(path.parent) == []


def test_names_must_be_new_to_be_made_and_there_to_be_opened(disk: Disk, tmp_path: Path) -> None:
    disk.close(disk.open(tmp_path / "a", create=True))
    with pytest.raises(FileExistsError):
        disk.open(tmp_path / "a", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "b")


def test_a_lock_is_held_once_and_goes_with_its_handle(disk: Disk, tmp_path: Path) -> None:
    lock = disk.lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        disk.lock(tmp_path / "lock")
    disk.close(lock)
    disk.close(disk.lock(tmp_path / "lock"))


def test_space_is_told(disk: Disk, tmp_path: Path) -> None:
    space = disk.space(tmp_path)
    assert 0 < space.free <= space.total


def test_a_lock_dies_with_the_process_that_holds_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from timerd_storage.disk import OsDisk;"
        "OsDisk().lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            OsDisk().lock(path)
        holder.kill()
        holder.wait()
        OsDisk().close(OsDisk().lock(path))


def test_a_crash_keeps_what_was_synced_and_anything_of_the_rest(tmp_path: Path) -> None:
    seen = set()
    for seed in range(200):
        disk = FakeDisk()
        file = disk.open(tmp_path / "a", create=True)
        disk.write(file, 0, b"aaaa")
        disk.sync(file)
        disk.sync_directory(tmp_path)
        disk.write(file, 2, b"bbbb")
        disk.close(disk.open(tmp_path / "b", create=True))
        disk.crash(Random(seed))
        with pytest.raises(OSError, match="process has ended"):
            disk.write(file, 0, b"x")
        seen.add((disk.content(tmp_path / "a"), "b" in disk.list_directory(tmp_path)))
    contents = {content for content, _ in seen}
    assert contents == {b"aaaa", b"aaba", b"aabb", b"aabbb", b"aabbbb"}
    assert {there for _, there in seen} == {True, False}


def test_a_name_is_lost_or_comes_back_unless_its_directory_was_synced(tmp_path: Path) -> None:
    kept = []
    for seed in range(20):
        disk = FakeDisk()
        disk.close(disk.open(tmp_path / "a", create=True))
        disk.sync_directory(tmp_path)
        disk.unlink(tmp_path / "a")
        disk.crash(Random(seed))
        kept.append("a" in disk.list_directory(tmp_path))
    assert set(kept) == {True, False}


def test_a_full_disk_takes_what_fits_and_every_overwrite(tmp_path: Path) -> None:
    disk = FakeDisk(limit=1000)
    disk.ballast = 500
    file = disk.open(tmp_path / "a", create=True)
    with pytest.raises(OSError) as caught:
        disk.write(file, 0, b"x" * 600)
    assert caught.value.errno == errno.ENOSPC
    assert disk.size(file) == 500
    disk.write(file, 0, b"y" * 500)
    with pytest.raises(OSError):
        disk.allocate(file, 0, 501)
    disk.ballast = 0
    disk.allocate(file, 0, 1000)


def test_a_locked_directory_can_be_worked_in_when_others_have_taken_every_descriptor(tmp_path: Path) -> None:
    disk = OsDisk()
    lock = disk.lock(tmp_path / "lock")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
    taken: list[int] = []

    def take_all() -> None:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))

    try:
        for number in range(30):
            take_all()
            path = tmp_path / str(number)
            file = disk.open(path, create=True)
            disk.sync_directory(tmp_path)
            take_all()
            disk.write(file, 0, b"there")
            disk.sync(file)
            disk.close(file)
            take_all()
            again = disk.open(path)
            assert disk.read(again, 0, 9) == b"there"
            disk.close(again)
        with pytest.raises(OSError, match="Too many open files"):
            taken += [disk.open(tmp_path / str(number)) for number in range(30)]
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    disk.close(lock)
    held = {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each)}
    assert str(tmp_path) not in held
    disk.close(disk.lock(tmp_path / "lock"))


def _is_open(descriptor: str) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").is_symlink()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_disk_whose_lock_file_was_taken_away_changes_nothing(tmp_path: Path, replaced: bool) -> None:
    disk, other = OsDisk(), OsDisk()
    lock = disk.lock(tmp_path / "lock")
    assert f"process {os.getpid()} on " in (tmp_path / "lock").read_text()
    file = disk.open(tmp_path / "log", create=True)
    disk.write(file, 0, b"mine")
    disk.check_lock()
    (tmp_path / "lock").unlink()
    theirs = other.lock(tmp_path / "lock") if replaced else None
    changes: list[Callable[[], object]] = [
        lambda: disk.write(file, 0, b"late"),
        lambda: disk.truncate(file, 0),
        lambda: disk.allocate(file, 0, 8192),
        lambda: disk.unlink(tmp_path / "log"),
        disk.check_lock,
    ]
    for change in changes:
        with pytest.raises(OSError, match="the lock file was") as found:
            change()
        assert found.value.errno == errno.ESTALE
    assert (tmp_path / "log").read_bytes() == b"mine"
    disk.close(file)
    disk.close(lock)
    disk.check_lock()  # there is none to lose
    if theirs is not None:
        other.check_lock()
        other.close(theirs)
