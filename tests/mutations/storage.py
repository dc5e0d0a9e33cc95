"""Planted in what writes: syncs, room, files and their names."""

from typing import Final

from tests.mutations.mutation import Mutation, Pytest, Simulator

PLANTED: Final = (
    Mutation(
        "effects-before-the-append",
        "effects leave while their records are being written",
        "timerd/runner.py",
        """\
            appended = 0
            if frames or self._log.unsettled():
                self._deciding = turns
                self.appending_since = self._clock.now().boot_ms
                appended = await self._log.append(frames, sum(inbox.bytes for inbox in self._inboxes.values()))
                self.appending_since = None
                self._deciding = []
            if not frames and not self._log.is_confirmed() and any(map(_rests_on_the_lease, turns)):
                self._deciding = turns
                self.appending_since = self._clock.now().boot_ms
                await self._log.confirm()
                self.appending_since = None
                self._deciding = []
            self._act(self._still_ours(turns), appended)
""",
        """\
            self._act(turns, 0)
            if frames or self._log.unsettled():
                await self._log.append(frames, sum(inbox.bytes for inbox in self._inboxes.values()))
""",
        Simulator(20),
    ),
    Mutation(
        "append-not-synced",
        "an append is written and not synced",
        "storage/timerd_storage/segment_file.py",
        """\
        # Under the same sync, so that it costs no wait: what was on disk before this append.
        self._mark(disk, self.file)
""",
        "        disk.write(self.file, MARK_OFFSETS[self.turn], segment.encode_mark(self.number, self.end))\n",
        Simulator(20),
    ),
    Mutation(
        "failed-sync-tried-again",
        "a sync that failed is tried again, and what it says then is believed",
        "storage/timerd_storage/segment_file.py",
        "segment.encode_mark(self.number, self.end))\n        disk.sync(file)\n",
        """\
segment.encode_mark(self.number, self.end))
        try:
            disk.sync(file)
        except OSError:
            disk.sync(file)
""",
        Pytest(
            "tests/storage/test_file_log.py",
            because="its disk, asked again after a failed sync, really syncs; a kernel may have forgotten the pages",
        ),
    ),
    Mutation(
        "segment-name-not-synced",
        "a new segment's file is synced, and its directory is not",
        "storage/timerd_storage/spares.py",
        "    try:\n        disk.sync_directory(path.parent)\n",
        "    try:\n        disk.sync(file)\n",
        Simulator(60),
    ),
    Mutation(
        "body-file-name-not-synced",
        "a new body file's directory is not synced",
        "storage/timerd_storage/body_files.py",
        "            self._disk.sync_directory(self._directory)\n            self._new_name = False\n",
        "            self._disk.sync(file)\n            self._new_name = False\n",
        Simulator(60),
    ),
    Mutation(
        "bodies-not-synced",
        "bodies are written and left to the sync of the frames behind them",
        "storage/timerd_storage/body_files.py",
        "        for number in dict.fromkeys(touched):\n            self._disk.sync(self._file(number))\n",
        "        for number in dict.fromkeys(touched):\n            self._file(number)\n",
        Simulator(60),
    ),
    Mutation(
        "bodies-after-frames",
        "bodies are written behind the frames that refer to them",
        "storage/timerd_storage/file_log.py",
        """\
        if dirty:
            self._bodies.write(dirty)
        if part:
            self._segments[-1].write(self._disk, part)
""",
        """\
        if part:
            self._segments[-1].write(self._disk, part)
        if dirty:
            self._bodies.write(dirty)
""",
        Simulator(60),
    ),
    Mutation(
        "body-hash-not-checked",
        "a body is handed on without a look at its hash",
        "storage/timerd_storage/body_files.py",
        "if len(data) == place.length and body.digest_of(data) == place.digest:",
        "if len(data) == place.length:",
        Pytest("tests/storage/test_bodies.py", because="its disk does not damage what was synced"),
    ),
    Mutation(
        "body-segment-dropped-in-use",
        "a body segment is dropped while arms that refer to it are on their way",
        "timerd/relocating.py",
        "if s.sealed and not self.placing[s.number]]",
        "if s.sealed]",
        Pytest(
            "tests/test_upkeep.py",
            because="its inboxes are never so full that an arm waits while a body segment is sealed behind it",
        ),
    ),
    Mutation(
        "header-after-frames",
        "a segment's header is written with its first frames, under their sync",
        "storage/timerd_storage/segment_file.py",
        "segment.encode_header(self.number, self.first))\n        disk.sync(self.file)\n",
        "segment.encode_header(self.number, self.first))\n",
        Pytest(
            "tests/storage/test_crash_property.py",
            because="segments are opened seldom, and its power cuts did not meet one in 60 seeds",
        ),
    ),
    Mutation(
        "replayed-not-synced",
        "what a start has read from the cache is not made durable before it is built on",
        "storage/timerd_storage/file_log.py",
        "            await self._worker.run(self._disk.sync, self._segments[-1].file)\n",
        "",
        Pytest(
            "tests/storage/test_crash_property.py",
            because="it takes a kill, a start and a power cut within one append each, too rare in 150 seeds",
        ),
    ),
    Mutation(
        "mark-of-this-append",
        "the mark that an append writes says that this very append is on disk",
        "storage/timerd_storage/segment_file.py",
        """\
        disk.write(self.file, self.offset, b"".join(parts))
        # Under the same sync, so that it costs no wait: what was on disk before this append.
        self._mark(disk, self.file)
""",
        """\
        disk.write(self.file, self.offset, b"".join(parts))
        disk.write(self.file, MARK_OFFSETS[self.turn], segment.encode_mark(self.number, position))
        disk.sync(self.file)
""",
        Simulator(60),
    ),
    Mutation(
        "deletion-not-synced",
        "a segment is deleted, and its directory is not synced before the next one is",
        "storage/timerd_storage/segment_file.py",
        "        disk.unlink(self.path)\n        disk.sync_directory(self.path.parent)\n",
        "        disk.unlink(self.path)\n",
        Pytest("tests/storage/test_crash_property.py", because="it sees it too, but only at seed 87"),
    ),
    Mutation(
        "reserve-ignored",
        "room that is kept for completions is given to arms",
        "storage/timerd_storage/room.py",
        "        length = self._granted_frames + more + self._reserve\n",
        "        length = self._granted_frames + more\n",
        Pytest(
            "tests/storage/test_supply.py",
            because="12 seeds did not see it; a run's completions are few beside the segment that is kept as well",
        ),
    ),
    Mutation(
        "lock-not-taken",
        "the lock file is opened and not locked",
        "storage/timerd_storage/disk.py",
        "            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        Pytest(
            "tests/storage/test_disk.py", because="one process at a time runs there, and its disk has a lock of its own"
        ),
    ),
    Mutation(
        "expiry-not-asked",
        "milliseconds are compared with microseconds, so no request ever expires",
        "timerd/clock.py",
        "if expires_at is not None and now.wall_us > expires_at * 1000:",
        "if expires_at is not None and now.wall_ms > expires_at * 1000:",
        Pytest("tests/test_requests.py", because="its callers take any answer to a request that has expired"),
    ),
)
