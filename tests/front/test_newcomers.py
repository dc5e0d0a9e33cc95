"""A node that joins while a type is deleted is not told to hold it off: what then becomes of the type."""

from typing import Any

from tests.front.rig import Cluster, on_virtual_time
from timerd.engine.message import Refused
from timerd.engine.timer import TimerType
from timerd.questions import HoldOff, read_asked, read_question

FAR = TimerType("far", url="http://t/", state="paused")


async def move(cluster: Cluster, shard: int, to: str) -> None:
    await cluster.release(shard)
    await cluster.take(to, shard)
    cluster.plan[shard] = to


def test_a_type_stays_when_a_node_that_was_not_told_has_got_a_shard():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        theirs = [shard for shard, owner in cluster.plan.items() if owner == "c"]
        for shard in theirs:
            await move(cluster, shard, "b")
        cluster.there = ["a", "b"]
        wire = cluster.wires["a"]
        ask = wire.ask

        async def joining(member: Any, question: bytes, timeout_s: float) -> Any:
            answer = await ask(member, question, timeout_s)
            if isinstance(read_question(read_asked(question)), HoldOff):
                wire.ask = ask  # type: ignore[method-assign]
                cluster.there = ["a", "b", "c"]
                await move(cluster, theirs[0], "c")
            return answer

        wire.ask = joining  # type: ignore[method-assign]
        kept = await cluster.fronts["a"].delete_type("far", None)
        assert isinstance(kept, Refused)
        assert (kept.name, kept.retry_after_s) == ("shard-unavailable", 1)
        assert "far" in cluster.fronts["a"].types
        assert await cluster.fronts["a"].delete_type("far", None) is None, "now it is told"

    on_virtual_time(work)
