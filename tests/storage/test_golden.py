"""Yesterday's logs can be read, and today's are written to the same bytes."""

import io
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.golden.lay import BODIES, GOLDEN, VERSION, lay
from tests.storage.laid import plain
from tests.storage.log_conformance import replayed, scanned
from timerd.engine.record import Armed, Relocated
from timerd.engine.timer import BodyRef
from timerd.ports import Frame
from timerd_storage import inspect
from timerd_storage.disk import OsDisk
from timerd_storage.file_log import FileLog
from timerd_storage.worker import ThreadWorker

MADE_UP = 3  # a body segment that one of the records names, and that never was
VERSIONS = sorted(path.stem for path in GOLDEN.glob("v*.json"))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_log_of_each_version_reads_to_the_same_records(version: str, tmp_path: Path) -> None:
    directory = tmp_path / version
    shutil.copytree(GOLDEN / version, directory)
    worker = ThreadWorker()
    log = await FileLog.open(directory, OsDisk(), worker, 65_536)
    found = await replayed(log)
    assert plain(found) == plain(msgspec.json.decode((GOLDEN / f"{version}.json").read_bytes(), type=list[Frame]))
    first, last = found[0].records[0], found[-1].records[0]
    assert isinstance(first, Armed)
    assert isinstance(last, Relocated)
    places = [timer.payload for timer in first.timers if isinstance(timer.payload, BodyRef)]
    places.append(last.bodies[0][2])
    await log.check_bodies(places)
    assert await log.read_bodies(places) == [BODIES[0][1], BODIES[1][1], BODIES[0][1]]
    assert [body.id for body in await scanned(log, 1)] == ["large", "larger", "large"]
    await log.close()
    await worker.close()
    out = io.StringIO()
    inspect.verify(directory, out)
    told = [
        line for line in out.getvalue().splitlines() if line.startswith(("CORRUPT", "MISSING")) or "DAMAGED" in line
    ]
    assert [line.split(":")[1].strip() for line in told] == [str(directory / f"{MADE_UP:012}.bodies")]


async def test_what_is_written_today_is_byte_for_byte_the_golden_log() -> None:
    files, frames = await lay()
    assert files == {path.name: path.read_bytes() for path in (GOLDEN / VERSION).iterdir()}
    assert msgspec.json.decode(msgspec.json.encode(frames)) == msgspec.json.decode(
        (GOLDEN / f"{VERSION}.json").read_bytes()
    )
