"""A18: a redirect turns the POST into an empty GET that "succeeds".

HTTP clients followed a redirect without the body, and the 200 of its target was taken for the receiver's answer
(MrZoller/vantage-point #49, baserow/baserow #1028, woocommerce/woocommerce #21490).
"""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.cases import seeded
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

STATUSES = (301, 302, 303, 307, 308)
ATTEMPTS = 3


def redirect(delivery: Delivery) -> Answer:
    kind = delivery.path.rsplit("/", 1)[-1]
    if kind == "ok":
        return Answer(body={"status": "ok"})
    if kind == "nowhere":
        return Answer(302)
    if kind == "loop":
        return Answer(307, headers={"Location": delivery.path})
    return Answer(int(kind), headers={"Location": "/ok"})


@pytest.mark.slow
async def test_no_redirect_counts_as_delivered_or_is_followed(tmp_path: Path) -> None:
    seeded()
    kinds = [*map(str, STATUSES), "nowhere", "loop"]
    retry = {"max_attempts": ATTEMPTS, "min_backoff": "50ms", "max_backoff": "100ms"}
    async with Processor(redirect) as processor, Process(tmp_path / "data") as timerd:
        root = "http://" + urlsplit(processor.url).netloc
        for kind in kinds:
            await timerd.put_type(f"t{kind}", url=f"{root}/{kind}", retry=retry)
        await timerd.put_type("good", url=f"{root}/ok")
        await timerd.arm([{"id": kind, "type": f"t{kind}", "delay": 0, "payload": {"n": 1}} for kind in kinds])

        async def all_dead() -> bool:
            return len(await timerd.dead_letters()) == len(kinds)

        await timerd.until(all_dead)
        for letter in await timerd.dead_letters():
            status = {"nowhere": "302", "loop": "307"}.get(letter["id"], letter["id"])
            assert status in letter["last_error"], letter
            assert letter["attempts"] == ATTEMPTS
        assert processor.counts == dict.fromkeys(kinds, ATTEMPTS)
        assert {delivery.method for delivery in processor.deliveries} == {"POST"}
        assert not [delivery for delivery in processor.deliveries if delivery.path == "/ok"]
        assert len(processor.deliveries) == ATTEMPTS * len(kinds)
        for kind in kinds:
            assert (await timerd.stats(f"t{kind}"))["fired"] == 0
        await timerd.arm([{"id": "fine", "type": "good", "delay": 0}])
        await processor.until(lambda: "fine" in processor.ids)
        assert not timerd.complaints()
