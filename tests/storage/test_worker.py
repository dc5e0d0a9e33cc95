"""The worker with a thread."""

import asyncio
import threading

import pytest

from timerd_storage.worker import ThreadWorker


async def test_jobs_run_one_at_a_time_in_order_on_one_thread() -> None:
    worker = ThreadWorker()
    ran: list[tuple[int, int]] = []

    def note(n: int) -> None:
        ran.append((n, threading.get_ident()))

    await asyncio.gather(*(worker.run(note, n) for n in range(100)))
    assert [n for n, _ in ran] == list(range(100))
    assert {thread for _, thread in ran} != {threading.get_ident()}
    assert len({thread for _, thread in ran}) == 1
    await worker.close()


async def test_results_and_errors_come_back() -> None:
    worker = ThreadWorker()
    assert await worker.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await worker.run(divmod, 7, 0)
    assert await worker.run(int, "ff", base=16) == 255
    await worker.close()


async def test_a_job_is_done_even_when_nobody_waits_for_it_any_more() -> None:
    worker = ThreadWorker()
    gate = threading.Event()
    ran: list[str] = []
    first = asyncio.create_task(worker.run(gate.wait))
    second = asyncio.create_task(worker.run(ran.append, "done"))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    gate.set()
    await worker.close()
    assert ran == ["done"]
