"""Plans: even, stable, with few moves, whoever works them out."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from timerd.engine.plan import Plan, Seat, next_plan

NAMES = "abcdefg"
groups = st.dictionaries(st.sampled_from(NAMES), st.sampled_from("12")).map(
    lambda lives: [Seat(name, life) for name, life in lives.items()]
)
some = groups.filter(bool)
counts = st.integers(1, 40)


@given(st.lists(groups, max_size=4), some, counts)
def test_every_shard_has_an_owner_that_is_there_and_all_have_the_same_share(
    earlier: list[list[Seat]], members: list[Seat], shards: int
) -> None:
    plan: Plan | None = None
    for group in earlier:
        plan = next_plan(plan, group, shards)
    plan = next_plan(plan, members, shards)
    load = Counter(plan.owners)
    assert set(load) <= set(members)
    assert len(plan.owners) == shards
    assert {load[seat] for seat in members} <= {shards // len(members), -(-shards // len(members))}


@given(groups, some, counts, st.permutations(range(7)))
def test_it_is_the_same_whatever_the_order_and_good_ones_stay(
    before: list[Seat], members: list[Seat], shards: int, order: list[int]
) -> None:
    first = next_plan(None, before, shards)
    plan = next_plan(first, members, shards)
    shuffled = [members[index] for index in order if index < len(members)]
    assert next_plan(first, shuffled, shards) == plan
    assert next_plan(plan, shuffled, shards) is plan, "nobody publishes what says nothing new"
    assert plan.version in (first.version, first.version + 1)


@given(some, some, counts)
def test_no_more_shards_move_than_an_even_share_needs(before: list[Seat], members: list[Seat], shards: int) -> None:
    first = next_plan(None, before, shards)
    plan = next_plan(first, members, shards)
    names = {seat.name for seat in members}
    held = Counter(seat.name for seat in first.owners if seat is not None and seat.name in names)
    kept = sum(
        old is not None and new is not None and old.name == new.name
        for old, new in zip(first.owners, plan.owners, strict=True)
    )
    least, more = divmod(shards, len(members))
    most = sorted((held[seat.name] for seat in members), reverse=True)
    assert kept == sum(min(count, least + (place < more)) for place, count in enumerate(most))


def test_a_node_that_leaves_gives_and_one_that_comes_takes_its_share_alone() -> None:
    a, b, c = Seat("a", "1"), Seat("b", "1"), Seat("c", "1")
    two = next_plan(None, [a, b], 24)
    assert two.version == 1
    three = next_plan(two, [c, a, b], 24)
    moved = [shard for shard in range(24) if two.owners[shard] != three.owners[shard]]
    assert [three.owner_of(shard) for shard in moved] == [c] * 8
    again = next_plan(three, [a, b], 24)
    assert all(again.owners[shard] == three.owners[shard] for shard in range(24) if shard not in moved)
    assert again.shards_of(a) == [shard for shard in range(24) if again.owner_of(shard) == a]


def test_a_node_that_is_back_has_what_it_had_and_of_nobody_nothing_remains() -> None:
    a, b = Seat("a", "1"), Seat("b", "1")
    two = next_plan(None, [a, b], 5)
    back = next_plan(two, [a._replace(life="2"), b], 5)
    assert [seat and seat.name for seat in back.owners] == [seat and seat.name for seat in two.owners]
    assert back.shards_of(a) == []
    nobody = next_plan(back, [], 5)
    assert nobody.owners == (None,) * 5
    assert nobody.owner_of(7) is None


def test_it_says_since_when_an_owner_has_been_the_same() -> None:
    a, b = Seat("a", "1"), Seat("b", "1")
    two = next_plan(None, [a, b], 4)
    assert two.since == (1, 1, 1, 1)
    one = next_plan(two, [b], 4)
    assert one.since == tuple(1 if owner == b else 2 for owner in two.owners)
    back = next_plan(one, [a, b], 4)
    assert all(back.since_of(shard) == 3 for shard in back.shards_of(a)), "another had it in between"
    assert all(back.since_of(shard) == one.since_of(shard) for shard in back.shards_of(b))
    assert next_plan(back, [a._replace(life="2"), b], 4).since_of(back.shards_of(a)[0]) == 4
    assert Plan(7, (a,)).since_of(0) == 0
