"""A18: a redirect turns the POST into an empty GET that "succeeds".

HTTP clients followed a redirect without the body, and the 200 of its target was taken for the receiver's answer
(MrZoller/vantage-point #49, baserow/baserow #1028, woocommerce/woocommerce #21490).
"""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.callbacks.target import Got, Reply, Target
from tests.support.cases import seeded
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

STATUSES = (300, 301, 302, 303, 304, 305, 307, 308)
"""Those of the case, and the others that one might take for something else than a failure."""
METADATA = "http://169.254.169.254/latest/meta-data/"
ATTEMPTS = 3
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


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


ALLOW = ("--callback-allow", "127.0.0.0/8")
BODY = "what the receiver must see"


@pytest.mark.slow
async def test_no_callback_follows_a_redirect(tmp_path: Path) -> None:
    """To the same host, to another that is allowed, to metadata services, in a loop: the POST fails, and goes nowhere.

    The order of the case: one target answers all of them in turn, and what it gets in the end is the request that was
    armed, byte for byte, signed anew.
    """
    seeded()
    script: dict[str, Reply] = {}

    def answer(got: Got) -> Reply:
        return script.get(got.target.strip("/"), Reply())

    async with (
        Target(answer) as target,
        Target(host="127.0.0.2") as elsewhere,
        Process(tmp_path / "data", *ALLOW) as timerd,
    ):
        root = f"http://127.0.0.1:{target.port}"
        for status in STATUSES:
            script[f"same-{status}"] = Reply(status, {"Location": "/ok"})
            script[f"other-{status}"] = Reply(status, {"Location": elsewhere.url})
            script[f"metadata-{status}"] = Reply(status, {"Location": METADATA})
        script["nowhere"] = Reply(302)
        script["loop"] = Reply(307, {"Location": "/loop"})
        script["scheme"] = Reply(308, {"Location": "file:///etc/passwd"})
        retry = {"max_attempts": ATTEMPTS, "min_backoff": "50ms", "max_backoff": "100ms"}
        await timerd.put_type("c", kind="callback", max_in_flight=64, retry=retry, signing_secrets=[SECRET])
        headers = {"Authorization": "Bearer only-for-the-target"}
        await timerd.arm(
            [
                {"id": kind, "type": "c", "delay": 0,
                 "request": {"url": f"{root}/{kind}", "body": BODY, "headers": headers}}
                for kind in script
            ]
        )  # fmt: skip

        async def all_dead() -> bool:
            return len(await timerd.dead_letters()) == len(script)

        await timerd.until(all_dead)
        for letter in await timerd.dead_letters():
            assert str(script[letter["id"]].status) in letter["last_error"], letter
            assert letter["attempts"] == ATTEMPTS
        assert (await timerd.stats("c"))["fired"] == 0
        assert not elsewhere.got
        assert sorted(got.target for got in target.got) == sorted(
            f"/{kind}" for kind in script for _ in range(ATTEMPTS)
        )
        assert {(got.method, got.body, got.headers["authorization"]) for got in target.got} == {
            ("POST", BODY.encode(), headers["Authorization"])
        }

        # Well again: a replay sends the same request, and not to where the redirect pointed.
        script.clear()
        await timerd.request("POST", "/v1/dead-letters:replay", {"type": "c"})
        await target.until(lambda: len(target.got) == (ATTEMPTS + 1) * len({got.target for got in target.got}))

        async def all_fired() -> bool:
            return bool((await timerd.stats("c"))["live"] == 0)

        await timerd.until(all_fired)
        assert await timerd.dead_letters() == []
        assert not [got for got in target.got if got.target == "/ok" or got.method != "POST"]
        assert all("webhook-signature" in got.headers for got in target.got)
        assert not timerd.complaints()
