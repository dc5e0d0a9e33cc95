"""`timerd log inspect | verify | repair`, on logs in real directories."""

import io
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.storage.laid import armed, fired, plain
from tests.storage.log_conformance import replayed
from timerd.engine.errors import CorruptLog
from timerd.engine.record import Armed, Cancelled, Checkpoint, Fired, Purged, Record, Relocated
from timerd.engine.ring import SLOTS, slot_of
from timerd.engine.timer import BodyRef, Timer
from timerd.ports import Frame
from timerd_storage import frame, inspect, repair
from timerd_storage.disk import OsDisk
from timerd_storage.file_log import FileLog
from timerd_storage.live_bodies import LiveBodies
from timerd_storage.segment import HEADER_BYTES
from timerd_storage.worker import ThreadWorker

SEGMENT = 16_384


@pytest.fixture
async def worker() -> AsyncIterator[ThreadWorker]:
    worker = ThreadWorker()
    yield worker
    await worker.close()


@pytest.fixture
async def frames(tmp_path: Path, worker: ThreadWorker) -> list[Frame]:
    """A log of several segments in `tmp_path`, with a body."""
    log = await FileLog.open(tmp_path, OsDisk(), worker, SEGMENT)
    await replayed(log)
    [place] = log.place_bodies(0, [("large", b"p" * 700)])
    laid = [Frame(0, 1, [Armed([Timer(1_800_000_000_000, 1 << 50, "large", "poll", place)])])]
    laid += [armed(shard, lsn - shard, 40) for lsn in range(2, 20) for shard in (0, 1)]
    laid.append(fired(0, 20))
    for each in laid:
        await log.append([each])
    await log.close()
    return laid


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def damage(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


def told(tool: object, directory: Path) -> tuple[int, str]:
    out = io.StringIO()
    code = tool(directory, out)  # type: ignore[operator]
    return code, out.getvalue()


def middle(path: Path) -> int:
    """The offset of the second frame's payload."""
    content = path.read_bytes()
    return content.find(frame.MARKER, HEADER_BYTES + 1) + frame.HEADER.size


async def start(directory: Path, worker: ThreadWorker) -> list[Frame]:
    log = await FileLog.open(directory, OsDisk(), worker, SEGMENT)
    try:
        return await replayed(log)
    finally:
        await log.close()


async def test_a_good_log_is_shown_frame_by_frame_and_left_alone(tmp_path: Path, frames: list[Frame]) -> None:
    before = files(tmp_path)
    code, text = told(inspect.inspect, tmp_path)
    assert code == 0
    assert "shard 0  lsn 20" in text
    assert "Fired x1 (4)  Armed x1 (1)" in text
    assert "shard 0: lsn 1 to 20" in text
    assert "shard 1: lsn 1 to 18" in text
    assert "000000000001.bodies  1 bodies named" in text
    assert f"{len(frames)} frames, good" in text
    assert told(inspect.verify, tmp_path)[0] == 0
    assert files(tmp_path) == before


async def test_a_torn_tail_is_no_damage(tmp_path: Path, frames: list[Frame]) -> None:
    last = max(path for path in tmp_path.glob("*.log") if path.read_bytes()[:8] == b"timerdLG")
    content = last.read_bytes()
    end = len(content.rstrip(b"\0"))
    last.write_bytes(content[:end] + b"1234567" + content[end + 7 :])
    code, text = told(inspect.inspect, tmp_path)
    assert code == 0
    assert f"{end}  TORN" in text
    assert told(repair.repair, tmp_path)[0] == 1, "the next start does it"


async def test_damage_is_named_and_repair_gives_up_what_lies_behind_it(
    tmp_path: Path, frames: list[Frame], worker: ThreadWorker
) -> None:
    damaged = tmp_path / "000000000002.log"
    offset = middle(damaged)
    damage(damaged, offset)
    before = files(tmp_path)
    for tool in (inspect.inspect, inspect.verify):
        code, text = told(tool, tmp_path)
        assert code == 1
        assert f"CORRUPT: {damaged}: offset {offset - frame.HEADER.size}" in text
        assert "timerd log repair" in text
    with pytest.raises(CorruptLog):
        await start(tmp_path, worker)
    assert files(tmp_path) == before, "neither looking nor a refused start changes anything"

    code, text = told(repair.repair, tmp_path)
    assert code == 0
    found = await start(tmp_path, worker)
    assert 0 < len(found) < len(frames)
    assert plain(found) == plain(frames[: len(found)])
    for lost in frames[len(found) + 1 :]:
        assert f"given up: shard {lost.shard} lsn {lost.lsn} " in text
    assert f"shard {frames[len(found)].shard} lsn {frames[len(found)].lsn} " not in text, "it is not whole"
    for name, content in before.items():
        if name.endswith(".log") and files(tmp_path).get(name) != content:
            assert (tmp_path / f"{name}.broken").read_bytes() == content
    assert told(repair.repair, tmp_path)[0] == 1, "nothing is left to repair"


async def test_a_repaired_log_can_be_written_and_damaged_again(
    tmp_path: Path, frames: list[Frame], worker: ThreadWorker
) -> None:
    for _ in range(2):
        damage(tmp_path / "000000000001.log", middle(tmp_path / "000000000001.log"))
        assert told(repair.repair, tmp_path)[0] == 0
        assert plain(await start(tmp_path, worker)) == plain(frames[:1])
        log = await FileLog.open(tmp_path, OsDisk(), worker, SEGMENT)
        await replayed(log)
        for lsn in range(2, 30):
            await log.append([armed(0, lsn, 40)])
        await log.close()
        assert len(await start(tmp_path, worker)) == 29
    assert (tmp_path / "000000000001.log.broken2").exists()


@pytest.mark.parametrize("name", ["000000000002.log", "000000000003.log"])
async def test_a_missing_segment_can_be_repaired(
    tmp_path: Path, frames: list[Frame], worker: ThreadWorker, name: str
) -> None:
    (tmp_path / name).unlink()
    assert told(inspect.verify, tmp_path)[0] == 1
    assert told(repair.repair, tmp_path)[0] == 0
    found = await start(tmp_path, worker)
    assert plain(found) == plain(frames[: len(found)])


async def test_a_damaged_header_is_repaired_but_not_the_oldest_ones(tmp_path: Path, frames: list[Frame]) -> None:
    damage(tmp_path / "000000000003.log", 20)
    code, text = told(repair.repair, tmp_path)
    assert code == 0
    assert "given up: all of 000000000003.log" in text
    damage(tmp_path / "000000000001.log", 20)
    assert told(inspect.verify, tmp_path)[0] == 1
    assert told(repair.repair, tmp_path)[0] == 1


async def test_a_log_in_use_is_not_repaired(tmp_path: Path, frames: list[Frame], worker: ThreadWorker) -> None:
    log = await FileLog.open(tmp_path, OsDisk(), worker, SEGMENT)
    code, text = told(repair.repair, tmp_path)
    assert code == 1
    assert str(tmp_path) in text
    await log.close()


async def test_a_damaged_body_is_found_by_verify(tmp_path: Path, frames: list[Frame]) -> None:
    damage(tmp_path / "000000000001.bodies", 100)
    code, text = told(inspect.verify, tmp_path)
    assert code == 1
    assert "1 DAMAGED" in text


def test_what_is_no_data_directory_is_no_good_log(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for tool in (inspect.inspect, inspect.verify, repair.repair):
        code, text = told(tool, tmp_path)
        assert code == 2
        assert f"no data directory: {tmp_path}" in text
    assert list(files(tmp_path)) == ["notes.txt"], "not even a lock"


def test_a_first_start_that_got_no_further_than_its_lock_is_a_good_log(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert told(inspect.verify, tmp_path) == (0, "0 frames, good\n")
    assert told(repair.repair, tmp_path)[0] == 1


@pytest.mark.parametrize("name", ["catalog.sqlite", "000000000001.bodies"])
def test_a_directory_without_its_log_is_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / name).touch()
    for tool in (inspect.inspect, inspect.verify, repair.repair):
        code, text = told(tool, tmp_path)
        assert code == 1
        assert "the log is missing" in text


async def test_repair_counts_what_it_gives_up(tmp_path: Path, frames: list[Frame]) -> None:
    damage(tmp_path / "000000000002.log", middle(tmp_path / "000000000002.log"))
    code, text = told(repair.repair, tmp_path)
    assert code == 0
    named = [line for line in text.splitlines() if line.startswith("given up: shard")]
    assert named[-1].startswith("given up: shard 0 lsn 20 ")
    assert named[-1].endswith(": Fired x1 (4)  Armed x1 (1)")
    counted = sum(len(frame.records) for frame in frames[-len(named) :])
    total = next(line for line in text.splitlines() if line.startswith("in the whole frames"))
    assert sum(int(number) for number in re.findall(r" x([0-9]+) ", total)) == counted


async def test_a_missing_beginning_is_found_and_is_nothing_that_repair_can_mend(
    tmp_path: Path, frames: list[Frame]
) -> None:
    (tmp_path / "000000000001.log").unlink()
    code, text = told(inspect.verify, tmp_path)
    assert code == 1
    assert "the log begins at segment 2, log position " in text
    assert "MISSING: the log's beginning: shard 0 begins at lsn " in text
    before = files(tmp_path)
    code, text = told(repair.repair, tmp_path)
    assert code == 1
    assert "the log's beginning is missing" in text
    assert files(tmp_path) == before


async def test_a_trimmed_log_is_good_when_slices_make_up_for_its_beginning(
    tmp_path: Path, worker: ThreadWorker
) -> None:
    log = await FileLog.open(tmp_path, OsDisk(), worker, SEGMENT)
    await replayed(log)
    slices = [Checkpoint(list(range(start, start + SLOTS // 2)), [], 0, 1, 0, 0, {}) for start in (0, SLOTS // 2)]
    laid = [armed(0, lsn, 40) for lsn in range(1, 15)]
    laid += [Frame(0, 15, slices[:1]), Frame(0, 16, slices[1:])]
    for each in laid:
        await log.append([each])
    assert await log.trim({0: 15}) > 0
    await log.close()
    code, text = told(inspect.verify, tmp_path)
    assert code == 0
    assert "earlier segments were trimmed, or are missing" in text
    whole = LiveBodies()
    whole.take(0, 15, slices[:1])
    assert whole.without_beginning() == [
        f"no shard begins at lsn 1, and checkpoint slices hold {SLOTS // 2} of {SLOTS} slots"
    ]


@pytest.mark.parametrize("left", [None, 0, 100, 400])
async def test_a_missing_or_short_file_of_bodies_is_found_and_filled_up(
    tmp_path: Path, frames: list[Frame], worker: ThreadWorker, left: int | None
) -> None:
    path = tmp_path / "000000000001.bodies"
    content = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(content[:left])
    for tool in (inspect.inspect, inspect.verify):
        code, text = told(tool, tmp_path)
        assert code == 1
        assert f"MISSING: {path}: " in text
        assert "timerd log repair" in text
    code, text = told(repair.repair, tmp_path)
    assert code == 0
    assert f"given up: 1 payloads in {path.name}" in text
    assert (tmp_path / f"{path.name}.broken").exists() == (left is not None)
    record = frames[0].records[0]
    assert isinstance(record, Armed)
    place = record.timers[0].payload
    assert isinstance(place, BodyRef)
    log = await FileLog.open(tmp_path, OsDisk(), worker, SEGMENT)
    assert plain(await replayed(log)) == plain(frames)
    await log.check_bodies([place])
    assert await log.read_bodies([place]) == [None]
    await log.close()
    assert told(repair.repair, tmp_path)[0] == 1, "nothing is left to repair"


async def test_only_live_bodies_are_missed(tmp_path: Path, worker: ThreadWorker) -> None:
    log = await FileLog.open(tmp_path, OsDisk(), worker, SEGMENT)
    await replayed(log)
    ids = ["fired", "cancelled", "replaced", "purged", "dropped", "moved", "sliced", "live"]
    first = log.place_bodies(0, [(id, id.encode() * 300) for id in ids])
    timers = [Timer(1_800_000_000_000, (1 << 50) + n, id, "poll", first[n]) for n, id in enumerate(ids)]
    await log.append([Frame(0, 1, [Armed(timers)])])
    [moved] = log.place_bodies(0, [("moved", b"m" * SEGMENT)])
    [live] = log.place_bodies(0, [("live", b"l" * 600)])
    replaced = Timer(1_800_000_000_000, 1 << 51, "replaced", "poll", b"small")
    rearmed = Timer(1_800_000_000_000, 1 << 52, "live", "poll", live)
    records: list[Record] = [
        Fired("poll", ["fired"], [rearmed], [("gone", ["dropped"])]),
        Cancelled(["cancelled"]),
        Armed([replaced]),
        Purged(["purged"]),
        Relocated([("moved", (1 << 50) + 5, moved)]),
        Checkpoint([slot_of("sliced")], [], 0, 1, 0, 0, {}),
    ]
    await log.append([Frame(0, 2, records)])
    await log.close()
    assert live.segment > first[0].segment
    (tmp_path / f"{first[0].segment:012}.bodies").unlink()
    assert moved.segment == first[0].segment or told(inspect.verify, tmp_path)[0] == 0
    (tmp_path / f"{live.segment:012}.bodies").unlink()
    code, text = told(inspect.verify, tmp_path)
    assert code == 1
    assert "1 of them are not there" in text


@pytest.mark.parametrize("name", ["000000000001.log", "000000000998.log", "000000000001.bodies", "000000000998.bodies"])
@pytest.mark.parametrize("kind", ["directory", "loop", "dangling"])
async def test_what_is_no_file_or_can_not_be_read_is_named_and_nothing_is_given_up_for_it(
    tmp_path: Path, frames: list[Frame], worker: ThreadWorker, name: str, kind: str
) -> None:
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(name if kind == "loop" else "nowhere")
    before = sorted(each.name for each in tmp_path.iterdir())
    for tool in (inspect.inspect, inspect.verify, repair.repair):
        code, text = told(tool, tmp_path)
        assert code == 1
        assert f"{path}: it can't be read: " in text
    with pytest.raises(CorruptLog, match=name):
        await start(tmp_path, worker)
    assert sorted(each.name for each in tmp_path.iterdir()) == before


@pytest.mark.parametrize("left", [None, 0, HEADER_BYTES])
async def test_a_lost_last_segment_is_named_and_repaired(
    tmp_path: Path, frames: list[Frame], worker: ThreadWorker, left: int | None
) -> None:
    last = max(path for path in tmp_path.glob("*.log") if path.read_bytes()[:8] == b"timerdLG")
    for spare in [path for path in tmp_path.glob("*.log") if path.name > last.name]:
        spare.unlink()
    last.unlink()
    if left is not None:
        last.write_bytes(bytes(left))
    code, text = told(inspect.verify, tmp_path)
    assert code == 1
    assert f"CORRUPT: {last}: offset 0: this segment was opened" in text
    assert told(repair.repair, tmp_path)[0] == 0
    found = await start(tmp_path, worker)
    assert 0 < len(found) < len(frames)
    assert plain(found) == plain(frames[: len(found)])
    assert told(inspect.verify, tmp_path)[0] == 0
