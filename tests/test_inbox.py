"""Inboxes: in order, bounded by bytes and by time, a turn's worth at a time."""

from timerd.inbox import MEMORY_MAX, TIMER_MEMORY, TURN_BYTES_MAX, WAIT_MS_MAX, Inbox


def test_a_turn_gathers_in_order_up_to_its_bytes():
    inbox = Inbox(1)
    for n in range(5):
        inbox.put(n, TURN_BYTES_MAX // 2, 0, 0)  # type: ignore[arg-type]
    assert inbox.gather() == [0, 1]
    assert inbox.gather() == [2, 3]
    assert inbox.gather() == [4]
    assert not inbox
    assert inbox.memory == 0


def test_its_bytes_are_those_of_what_waits():
    inbox = Inbox(1)
    for size in (300, 200, 600):
        inbox.put(size, size, 1, 0)  # type: ignore[arg-type]
    inbox.put_ahead(50, 50)  # type: ignore[arg-type]
    assert inbox.bytes == 1150
    inbox.gather(600)
    assert inbox.bytes == 600
    inbox.gather()
    assert inbox.bytes == 0


def test_one_message_is_always_gathered_however_large():
    inbox = Inbox(1)
    inbox.put("large", TURN_BYTES_MAX * 3, 0, 0)  # type: ignore[arg-type]
    inbox.put("next", 1, 0, 0)  # type: ignore[arg-type]
    assert inbox.gather() == ["large"]
    assert inbox.gather() == ["next"]


def test_room_is_by_what_waits_and_never_by_what_comes():
    inbox = Inbox(1)
    assert inbox.has_room(0)
    inbox.put("small", MEMORY_MAX - 1, 0, 0)  # type: ignore[arg-type]
    assert inbox.has_room(0), "a large one has the same chance as a small one"
    inbox.put("large", MEMORY_MAX, 0, 0)  # type: ignore[arg-type]
    assert not inbox.has_room(0)


def test_who_would_wait_too_long_is_told_so_however_little_it_is():
    inbox = Inbox(1)
    inbox.put("a", 1, 0, 1_000)  # type: ignore[arg-type]
    inbox.put("b", 1, 0, 1_500)  # type: ignore[arg-type]
    assert inbox.has_room(1_000 + WAIT_MS_MAX)
    assert not inbox.has_room(1_001 + WAIT_MS_MAX)
    inbox.gather(1)
    assert inbox.has_room(1_001 + WAIT_MS_MAX), "what is next now came later"


def test_a_delivery_waits_behind_no_arms_and_keeps_none_of_them_waiting():
    inbox = Inbox(1)
    inbox.put("arm", TURN_BYTES_MAX, 0, 0)  # type: ignore[arg-type]
    inbox.put("next", TURN_BYTES_MAX, 0, 0)  # type: ignore[arg-type]
    inbox.put_ahead("take", 64)  # type: ignore[arg-type]
    inbox.put_ahead("settle", TURN_BYTES_MAX)  # type: ignore[arg-type]
    assert inbox.gather() == ["take", "arm"]
    assert inbox.gather() == ["settle", "next"]
    assert not inbox
    assert inbox.memory == 0


def test_deliveries_under_way_never_refuse_a_caller_by_their_age():
    inbox = Inbox(1)
    inbox.put_ahead("take", 64)  # type: ignore[arg-type]
    assert inbox.has_room(10 * WAIT_MS_MAX)


def test_timers_count_for_the_memory_they_take_and_shards_share_it():
    inbox = Inbox(4)
    assert inbox.memory_max == MEMORY_MAX // 4
    inbox.put("arm", 50_000, 1_000, 0)  # type: ignore[arg-type]
    left = inbox.memory_max - 50_000 - 1_000 * TIMER_MEMORY
    assert inbox.has_room(0)
    inbox.put("more", 0, left // TIMER_MEMORY + 1, 0)  # type: ignore[arg-type]
    assert not inbox.has_room(0)
    inbox.gather()
    assert inbox.has_room(0)
