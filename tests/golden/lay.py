"""Lay down the golden log of the present format version: `python -m tests.golden.lay`.

Every kind of record, two segments with frames and a spare, bodies, and a clean stop; the same bytes each time. Run it
once for each format version that is released, and never over one that was.
"""

import asyncio
from pathlib import Path

import msgspec

from tests.sim.disk import FakeDisk
from tests.storage.laid import HOME, armed, fired, open_on
from tests.storage.test_codec import RECORDS
from timerd.engine.record import Armed, Relocated
from timerd.engine.timer import Timer
from timerd.ports import Frame
from timerd_storage import segment

GOLDEN = Path(__file__).parent
VERSION = f"v{segment.VERSION}"
BODIES = [("large", b'{"a":"' + b"x" * 600 + b'"}'), ("larger", b'{"b":"' + b"y" * 900 + b'"}')]


async def lay() -> tuple[dict[str, bytes], list[Frame]]:
    """The files by name, and the frames that they hold."""
    disk = FakeDisk()
    log, _ = await open_on(disk, 8192)
    await asyncio.sleep(0)
    places = log.place_bodies(0, BODIES)
    timers = [
        Timer(1_800_000_000_000, (1 << 50) + n, id, "poll", place)
        for n, ((id, _), place) in enumerate(zip(BODIES, places, strict=True))
    ]
    frames = [Frame(0, 1, [Armed(timers)]), *(Frame(1, n, [record]) for n, record in enumerate(RECORDS, 1))]
    frames += [armed(0, 2, 30), armed(0, 3, 30), fired(0, 4, 10)]
    for start in range(0, len(frames), 3):
        await log.append(frames[start : start + 3])
        await asyncio.sleep(0)
    [moved] = log.place_bodies(0, BODIES[:1])
    frames.append(Frame(0, 5, [Relocated([("large", 1 << 50, moved)])]))
    await log.append(frames[-1:])
    await log.close()
    return {name: disk.content(HOME / name) for name in disk.list_directory(HOME)}, frames


def main() -> None:
    directory = GOLDEN / VERSION
    directory.mkdir()
    files, frames = asyncio.run(lay())
    for name, content in files.items():
        (directory / name).write_bytes(content)
    (GOLDEN / f"{VERSION}.json").write_bytes(msgspec.json.format(msgspec.json.encode(frames)))


if __name__ == "__main__":
    main()
