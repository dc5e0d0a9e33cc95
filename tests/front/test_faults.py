"""Nodes that are away, late, or no owners any more: what a caller is told, and what is done."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tests.front.rig import Cluster, Fault, ids_of, on_virtual_time
from timerd.engine.message import ArmDone, Condition, Filter, Refused
from timerd.engine.ring import slot_of
from timerd.engine.timer import Timer, TimerType
from timerd.questions import ArmThese, CancelThese, FireOne, HoldOff, Unsure, encode_question, read_answer, read_told

FAR = TimerType("far", url="http://t/", state="paused")


def some(cluster: Cluster, name: str, count: int) -> list[str]:
    found = ids_of(cluster, name)
    return [next(found) for _ in range(count)]


async def arm(cluster: Cluster, ids: Iterable[str], at: str = "a", **more: Any) -> Any:
    timers = [Timer(cluster.clock.wall_ms + 10**6, 0, id, "far", b"1") for id in ids]
    return await cluster.fronts[at].arm(timers, more.get("conditions"), more.get("want", True), more.get("expires"))


def statuses(done: Any) -> list[str]:
    assert isinstance(done, ArmDone), done
    return [result.status for result in done.results or ()]


async def there(cluster: Cluster, ids: Iterable[str]) -> list[str]:
    """Which of these their owners have, whoever can be reached."""
    shown = []
    for id in ids:
        for node in cluster.nodes.values():
            view = await node.get(id)
            if view is not None and not isinstance(view, Refused):
                shown.append(id)
    return shown


def seconds(cluster: Cluster) -> float:
    return cluster.loop.time()


@pytest.mark.parametrize("kind", ["unsent", "lost_before", "silent"])
def test_items_of_an_owner_that_is_away_are_unavailable_and_the_others_are_armed(kind):
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        cluster.wires["a"].faults["b"] = Fault(kind)
        began = seconds(cluster)
        mine, theirs = some(cluster, "a", 2), some(cluster, "b", 2)
        done = await arm(cluster, [mine[0], theirs[0], mine[1], theirs[1]], want=False)
        assert statuses(done) == ["created", "unavailable", "created", "unavailable"]
        assert list(done.unavailable) == [1, 3]
        assert done.armed == 2
        assert seconds(cluster) - began < 10
        assert await there(cluster, mine + theirs) == mine
        cluster.wires["a"].faults.clear()
        done = await arm(cluster, [mine[0], theirs[0], mine[1], theirs[1]])
        assert statuses(done) == ["moved", "created", "moved", "created"], "sending it again is safe"

    on_virtual_time(work)


def test_a_lost_answer_is_the_callers_to_ask_for_again_when_the_first_can_do_nothing_more():
    """If it was stored, and has fired since, it would fire twice."""

    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        [id] = some(cluster, "b", 1)
        await arm(cluster, [id])  # its clock is known
        for kind in ("lost_after", "late"):
            cluster.wires["a"].faults["b"] = Fault(kind, ArmThese, times=1)
            began, asked = seconds(cluster), len(cluster.wires["a"].asked)
            done = await arm(cluster, [id])
            assert statuses(done) == ["unavailable"]
            assert seconds(cluster) - began >= 4, "the first had to run out"
            assert len(cluster.wires["a"].asked) == asked + 1
            generation = (await cluster.fronts["c"].get(id)).generation
            await asyncio.sleep(30)  # what was held up arrives, too late
            view = await cluster.fronts["c"].get(id)
            assert view.generation == generation

    on_virtual_time(work)


def test_what_is_held_up_on_its_way_does_not_undo_what_came_after_it():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        [id] = some(cluster, "b", 1)
        await arm(cluster, [id])
        cluster.wires["a"].faults["b"] = Fault("late")
        done = await arm(cluster, [id], conditions=[Condition(if_generation=None)])
        assert statuses(done) == ["unavailable"]
        newer = await cluster.fronts["c"].cancel([id], None)
        assert newer[0].found
        await asyncio.sleep(60)
        assert await cluster.fronts["c"].get(id) is None

    on_virtual_time(work)


def test_what_must_not_be_done_twice_is_not_asked_for_twice():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        [id] = some(cluster, "b", 1)
        wire = cluster.wires["a"]
        wire.faults["b"] = Fault("lost_after", ArmThese)
        done = await arm(cluster, [id], conditions=[Condition(if_generation=0)])
        assert statuses(done) == ["unavailable"], "and not a conflict with itself"
        assert sum(isinstance(question, ArmThese) for _, question in wire.asked) == 1
        wire.faults["b"] = Fault("lost_after", FireOne)
        fired = await cluster.fronts["a"].fire(id, None)
        assert isinstance(fired, Refused)
        assert fired.name == "shard-unavailable"
        assert sum(isinstance(question, FireOne) for _, question in wire.asked) == 1
        wire.faults["b"] = Fault("lost_after", CancelThese)
        cancelled = await cluster.fronts["a"].cancel([id], None)
        assert cancelled[0].unavailable
        assert not cancelled[0].found
        assert sum(isinstance(question, CancelThese) for _, question in wire.asked) == 1

    on_virtual_time(work)


def test_a_shard_that_is_handed_over_is_asked_for_at_its_new_owner():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        [id] = some(cluster, "b", 1)
        shard = next(s for s in range(6) if cluster.plan[s] == "b")
        [id] = [id for id in some(cluster, "b", 20) if cluster.table.shards[slot_of(id)] == shard][:1]
        await cluster.release(shard)

        async def hand_over() -> None:
            await asyncio.sleep(0.1)
            cluster.plan[shard] = "c"
            await cluster.take("c", shard)

        handing = asyncio.ensure_future(hand_over())
        assert statuses(await arm(cluster, [id])) == ["created"]
        await handing
        assert shard in cluster.nodes["c"].held
        assert (await cluster.fronts["b"].get(id)).id == id

    on_virtual_time(work)


def test_a_shard_that_nobody_serves_is_nobodys_gap():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        ids = some(cluster, "a", 4) + some(cluster, "b", 4)
        await arm(cluster, ids)
        shard = next(s for s in range(6) if cluster.plan[s] == "b")
        await cluster.release(shard)
        front = cluster.fronts["a"]
        for answer in (
            await front.list(Filter(), 100, None),
            await front.list_dead(None, 100, None),
            await front.next(None, 10),
            await front.tally(),
            await front.status(),
            await front.replay_dead(None, "far", None),
            await front.delete_type("far", None),
        ):
            assert isinstance(answer, Refused)
            assert answer.name == "shard-unavailable"
            assert answer.retry_after_s == 1
        [row] = [report for report in await front.shards() if report.id == shard]
        assert (row.owner, row.epoch) == ("", 0)
        assert "far" in front.types

    on_virtual_time(work)


def test_a_refusal_of_one_owner_is_the_requests_only_when_nothing_was_stored():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        refusal = Refused("storage-full", "full", [])

        async def full(*given: Any, **more: Any) -> Refused:
            return refusal

        cluster.nodes["b"].arm = full  # type: ignore[method-assign]
        assert await arm(cluster, some(cluster, "b", 2)) == refusal
        assert statuses(await arm(cluster, some(cluster, "b", 1) + some(cluster, "c", 1))) == ["unavailable", "created"]
        cluster.nodes["c"].arm = full  # type: ignore[method-assign]
        assert await arm(cluster, some(cluster, "b", 1) + some(cluster, "c", 1)) == refusal
        cluster.wires["a"].faults["c"] = Fault("lost_after")
        done = await arm(cluster, some(cluster, "b", 1) + some(cluster, "c", 1))
        assert statuses(done) == ["unavailable", "unavailable"], "of some it is not known"

    on_virtual_time(work)


def test_an_expiry_is_the_callers_wherever_it_is_met():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        ids = some(cluster, "b", 2)
        await arm(cluster, ids[:1])
        soon = cluster.clock.wall_ms + 1_000
        assert statuses(await arm(cluster, ids, expires=soon)) == ["unchanged", "created"]
        late = await arm(cluster, ids, expires=cluster.clock.wall_ms - 1)
        assert isinstance(late, Refused)
        assert late.name == "expired"
        cluster.wires["a"].faults["b"] = Fault("late")
        done = await arm(cluster, ids, expires=cluster.clock.wall_ms + 500)
        assert statuses(done) == ["unavailable", "unavailable"]
        await asyncio.sleep(30)

    on_virtual_time(work)


def test_a_question_is_never_handed_on():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        cluster.plan = dict.fromkeys(cluster.plan, "b")  # a plan that is ahead of what b holds
        for shard in (0, 3):
            await cluster.release(shard)
        ids = [f"id-{n}" for n in range(30)]
        done = await arm(cluster, ids)
        assert set(statuses(done)) == {"created", "unavailable"}
        assert not cluster.wires["b"].asked
        assert not cluster.wires["c"].asked

    on_virtual_time(work)


def test_another_version_is_refused_by_number(monkeypatch):
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        monkeypatch.setattr("timerd.parts.VERSION", 2)
        done = await arm(cluster, some(cluster, "b", 1))
        assert statuses(done) == ["unavailable"]
        assert not await there(cluster, some(cluster, "b", 1))

    on_virtual_time(work)


def test_an_answer_of_another_version_is_not_read():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        [id] = some(cluster, "b", 1)
        await arm(cluster, [id])
        cluster.wires["a"].faults["b"] = Fault("newer")
        answer = await cluster.fronts["a"].get(id)
        assert isinstance(answer, Refused)
        assert "node b speaks version 2" in answer.detail

    on_virtual_time(work)


def test_another_process_of_the_same_name_does_nothing_about_it():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        cluster.parts["b"]._life = "another life"
        assert statuses(await arm(cluster, some(cluster, "b", 1))) == ["unavailable"]

    on_virtual_time(work)


@pytest.mark.parametrize("at", ["a", "b"])
def test_everything_ends_in_time_while_a_log_stands_still(at):
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        ids = some(cluster, "a", 1)
        log = cluster.logs[cluster.table.shards[slot_of(ids[0])]]
        gate = asyncio.Event()
        append = log.append

        async def frozen(*given: Any) -> int:
            await gate.wait()
            return await append(*given)

        log.append = frozen  # type: ignore[method-assign]
        began = seconds(cluster)
        assert statuses(await arm(cluster, ids, at=at)) == ["unavailable"]
        assert seconds(cluster) - began <= 10
        gate.set()
        await asyncio.sleep(1)

    on_virtual_time(work)


def test_a_question_of_another_node_is_answered_in_time_too():
    async def work(cluster: Cluster) -> None:
        [id] = some(cluster, "b", 1)
        log, gate = cluster.logs[cluster.table.shards[slot_of(id)]], asyncio.Event()

        async def frozen(*given: Any) -> int:
            await gate.wait()
            return 0

        log.append = frozen  # type: ignore[method-assign]
        await cluster.nodes["b"].put_type(FAR, False, None)
        until_ms = cluster.clock.now().boot_ms + 60_000
        timers = [Timer(cluster.clock.wall_ms + 10**6, 0, id, "far")]
        asked = ArmThese(timers, [slot_of(id)], None)
        question = encode_question("life of b", until_ms, asked)
        answer = read_answer(read_told(await asyncio.wait_for(cluster.parts["b"].hear(question), 11)), asked)
        assert isinstance(answer, Unsure), "it stands in line, so it is not undone"
        gate.set()

    on_virtual_time(work)


def test_a_million_timers_share_the_one_string_of_their_types_name():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        node, seen = cluster.nodes["b"], []
        inner = node.arm

        async def watched(timers: list[Timer], *rest: Any) -> Any:
            seen.extend(timers)
            return await inner(timers, *rest)

        node.arm = watched  # type: ignore[method-assign]
        await arm(cluster, some(cluster, "b", 3))
        assert len(seen) == 3
        assert all(timer.type is node.types["far"].name for timer in seen)

    on_virtual_time(work)


def test_a_type_put_elsewhere_is_known_where_it_is_armed():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        await cluster.fronts["b"].put_type(TimerType("new", url="http://t/", state="paused"), False, None)
        assert "new" not in cluster.fronts["c"].types
        assert await cluster.fronts["c"].learn_types() is None
        assert "new" in cluster.fronts["c"].types
        timers = [Timer(cluster.clock.wall_ms + 10**6, 0, id, "new", b"1") for id in some(cluster, "a", 1)]
        done = await cluster.fronts["b"].arm(timers, None, True, None)  # a has not heard of it
        assert statuses(done) == ["created"]
        stored = cluster.nodes["a"].types["new"]
        assert stored.state == "paused"

    on_virtual_time(work)


def test_a_type_lives_while_a_timer_of_it_does_anywhere():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR, TimerType("idle", url="http://t/"))
        await arm(cluster, some(cluster, "c", 1))
        kept = await cluster.fronts["a"].delete_type("far", None)
        assert isinstance(kept, Refused)
        assert kept.name == "type-in-use"
        as_callback = TimerType("far", kind="callback")
        assert isinstance(await cluster.fronts["b"].put_type(as_callback, False, None), Refused)
        assert await cluster.fronts["a"].delete_type("idle", None) is None
        assert "idle" not in cluster.nodes["c"].types, "they are told as it goes"

    on_virtual_time(work)


def test_no_node_takes_arms_of_a_type_while_it_goes():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        held: list[Any] = []
        delete = cluster.catalog.delete_type

        async def slowly(name: str) -> None:
            held.append(await arm(cluster, some(cluster, "c", 1), at="b"))
            await delete(name)

        cluster.catalog.delete_type = slowly  # type: ignore[method-assign]
        assert await cluster.fronts["a"].delete_type("far", None) is None
        assert isinstance(held[0], Refused)
        assert held[0].name == "overloaded"
        assert not await there(cluster, some(cluster, "c", 1))
        later = await arm(cluster, some(cluster, "c", 1), at="b")
        assert isinstance(later, Refused)
        assert later.name == "unknown-type"

    on_virtual_time(work)


def test_a_type_stays_when_a_node_can_not_be_told_to_hold_it_off():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        cluster.wires["a"].faults["c"] = Fault("unsent", HoldOff)
        answer = await cluster.fronts["a"].delete_type("far", None)
        assert isinstance(answer, Refused)
        assert answer.name == "shard-unavailable"
        assert statuses(await arm(cluster, some(cluster, "b", 1), at="b")) == ["created"], "nothing is held off"

    on_virtual_time(work)


def test_a_large_request_goes_to_each_owner_once_and_its_payloads_as_they_are():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        payload = b'{ "spaced" :  1.50, "x": "' + b"y" * 1_500 + b'" }'
        ids = [f"id-{n}" for n in range(3_000)]
        timers = [Timer(cluster.clock.wall_ms + 10**6, 0, id, "far", payload) for id in ids]
        done = await cluster.fronts["a"].arm(timers, None, True, None)
        assert statuses(done) == ["created"] * 3_000
        asked = [name for name, question in cluster.wires["a"].asked if isinstance(question, ArmThese)]
        assert sorted(asked) == ["b", "c"]
        for id in some(cluster, "b", 2) + some(cluster, "c", 2):
            assert (await cluster.fronts["a"].get(id)).payload == payload
        shown, token = [], None
        while True:
            page = await cluster.fronts["b"].list(Filter(), 1_000, token)
            assert not isinstance(page, Refused)
            shown += page[0]
            if (token := page[1]) is None:
                break
        assert sorted(view.id for view in shown) == sorted(ids)
        assert all(view.payload == payload for view in shown)

    on_virtual_time(work)


def test_items_of_one_id_stay_in_order():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        base = cluster.clock.wall_ms + 10**6
        ids = [f"id-{n % 7}" for n in range(70)]
        timers = [Timer(base + n, 0, id, "far", b"%d" % n) for n, id in enumerate(ids)]
        done = await cluster.fronts["c"].arm(timers, None, True, None)
        assert statuses(done) == ["created"] * 7 + ["moved"] * 63
        assert [result.previous_fire_at for result in done.results[7:]] == [base + n - 7 for n in range(7, 70)]
        for n in range(7):
            assert (await cluster.fronts["a"].get(f"id-{n}")).payload == b"%d" % (63 + n)

    on_virtual_time(work)


def test_counts_are_of_each_shard_once_while_it_changes_hands():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        await arm(cluster, [f"id-{n}" for n in range(60)])
        assert (await cluster.fronts["a"].tally()).types["far"].live == 60
        own = sum(cluster.plan[cluster.table.shards[slot_of(f"id-{n}")]] == "a" for n in range(60))
        assert (await cluster.fronts["a"].own_tally()).types["far"].live == own
        shard = next(s for s in range(6) if cluster.plan[s] == "b")
        await cluster.release(shard)
        await cluster.take("c", shard)
        cluster.plan[shard] = "c"
        tally = await cluster.fronts["a"].tally()
        assert tally.types["far"].live == 60
        assert sorted(report.shard for report in tally.shards) == list(range(6))
        assert {row.id: row.owner for row in await cluster.fronts["b"].shards()}[shard] == "c"
        assert [(node.id, node.shards) for node in cluster.fronts["b"].nodes()][2][1].count(shard) == 1

    on_virtual_time(work)
