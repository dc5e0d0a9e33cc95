"""Planted in what a restart rests on: slices, replay, and what damage means."""

from typing import Final

from tests.mutations.mutation import Mutation, Pytest, Simulator

PLANTED: Final = (
    Mutation(
        "newer-copy-not-in-slices",
        "a slice leaves out a timer whose older generation is still being delivered",
        "timerd/engine/slicing.py",
        "        timers += run.by_id.values()\n",
        "        timers += [timer for timer in run.by_id.values() if timer.id not in state.blocked]\n",
        Simulator(150),
    ),
    Mutation(
        "last-from-the-timers",
        "a slice's `last` is not taken over; it is worked out from the timers in it",
        "timerd/engine/loading.py",
        "    state.last = record.last\n",
        "    state.last = max((timer.generation for timer in record.timers), default=state.last)\n",
        Simulator(60),
    ),
    Mutation(
        "totals-forgotten-by-slices",
        "a slice's totals are added to nothing",
        "timerd/engine/loading.py",
        "    for name, totals in record.totals.items():\n        state.lane(name).totals = totals\n",
        "    for name in record.totals:\n        state.lane(name)\n",
        Simulator(60),
    ),
    Mutation(
        "attempts-forgotten",
        "the attempts of a timer in a slice begin anew, as its gap does",
        "timerd/engine/loading.py",
        "replace(failure, since=since)",
        "replace(failure, attempts=0, since=since)",
        Simulator(60),
    ),
    Mutation(
        "one-slice-ends-the-skipping",
        "the first slice of a shard ends the skipping for all of its slots",
        "timerd/engine/replay.py",
        "                self._know(record.slots)\n            elif isinstance(record, Adopted)",
        "                self._missing.clear()\n            elif isinstance(record, Adopted)",
        Simulator(60),
    ),
    Mutation(
        "old-timers-of-a-slot-kept",
        "replay of a slice keeps what its slots held before",
        "timerd/engine/loading.py",
        "        for id in ids:\n            old = run.by_id.pop(id)\n",
        "        for id in ids[:0]:\n            old = run.by_id.pop(id)\n",
        Pytest(
            "tests/engine/test_replay.py",
            because="in a log that is written as it should be a slice says what its slots hold anyhow",
        ),
    ),
    Mutation(
        "ready-in-the-log",
        "a timer that was ready when its record was written is not put back to waiting by replay",
        "timerd/engine/replay.py",
        "    for timer in timers:\n        timer.state = WAITING\n",
        "    for timer in timers if isinstance(record, Armed) else ():\n        timer.state = WAITING\n",
        Simulator(60),
    ),
    Mutation(
        "clean-end-with-retries-unwritten",
        "a stop that leaves retries unwritten is written down as a clean one",
        "timerd/engine/shard.py",
        "if not self._draft.flights and not self._draft.forgets:",
        "if not self._draft.flights:",
        Pytest(
            "tests/engine/test_settling.py",
            because="12 seeds did not see it; it excuses what is not flagged once retries are kept in memory alone",
        ),
    ),
    Mutation(
        "trim-one-frame-too-far",
        "the log is trimmed up to and with the frame of the oldest slice",
        "timerd/engine/shard.py",
        "        return max(covered, 1)\n",
        "        return max(covered + 1, 1)\n",
        Simulator(60),
    ),
    Mutation(
        "trim-before-the-slices",
        "when slices are asked for that free the oldest segment, it is deleted before they are written",
        "timerd/upkeep.py",
        "                self._runner.send(id, Slice(partial(self._slice_written, size)))\n",
        """\
                self._runner.send(id, Slice(partial(self._slice_written, size)))
            if sum(slices) >= pinned_bytes:
                needed = {shard.id: shard.state.lsn + 1 for shard in self._shards()}
                return lambda: self._log.trim(needed)
""",
        Simulator(60),
    ),
    Mutation(
        "cut-one-frame-too-many",
        "a torn tail is cut one whole frame too early",
        "storage/timerd_storage/recover.py",
        '    return Ending(frames, position, "zeros',
        '    position = frames[-1].position if frames else position\n    return Ending(frames[:-1], position, "zeros',
        Simulator(60),
    ),
    Mutation(
        "cut-one-frame-too-few",
        "the checksum of a frame is not looked at, so a torn frame is read as a whole one",
        "storage/timerd_storage/frame.py",
        "if data[end : end + 1] != END or zlib.crc32(memoryview(data)[offset + _CHECKED_FROM : end]) != checksum:",
        "if data[end : end + 1] != END:",
        Pytest(
            "tests/storage/test_crash_property.py",
            because="12 seeds did not see it; most of its frames are smaller than a page, which is there or not",
        ),
    ),
    Mutation(
        "tail-not-cut",
        "a torn tail is left where it is",
        "storage/timerd_storage/file_log.py",
        'await self._worker.run(held.cut, self._disk, len(data.rstrip(b"\\0")))',
        "await self._worker.run(held.cut, self._disk, held.offset)",
        Pytest(
            "tests/crash/test_damage.py", because="what is left there harms only when it fits what is written later"
        ),
    ),
    Mutation(
        "torn-tail-written-behind",
        "after a cut the same segment goes on being written",
        "storage/timerd_storage/file_log.py",
        "        if torn or not self._segments:\n",
        "        if not self._segments:\n",
        Pytest(
            "tests/crash/test_damage.py",
            because="the cut is made durable, so it takes damage at that very place to see the difference",
        ),
    ),
    Mutation(
        "damage-taken-for-a-torn-tail",
        "a bad frame with synced frames behind it is taken for a torn tail",
        "storage/timerd_storage/recover.py",
        "    if synced > position:\n",
        "    if synced > position and clean:\n",
        Pytest(
            "tests/storage/test_recover.py",
            "tests/crash/test_damage.py",
            because="its disk does not damage what was synced",
        ),
    ),
    Mutation(
        "missing-end-taken-for-the-end",
        "an end that is missing although a mark knows of it is taken for the end",
        "storage/timerd_storage/recover.py",
        "    if synced > position:\n",
        "    if synced > position and not clean:\n",
        Pytest(
            "tests/storage/test_recover.py",
            "tests/crash/test_damage.py",
            because="its disk does not damage what was synced",
        ),
    ),
)
