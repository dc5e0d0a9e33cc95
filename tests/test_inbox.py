"""Inboxes: in order, bounded by bytes, a turn's worth at a time."""

from timerd.inbox import INBOX_BYTES_MAX, TURN_BYTES_MAX, Inbox


def test_a_turn_gathers_in_order_up_to_its_bytes():
    inbox = Inbox()
    for n in range(5):
        inbox.put(n, TURN_BYTES_MAX // 2)  # type: ignore[arg-type]
    assert inbox.gather() == [0, 1]
    assert inbox.gather() == [2, 3]
    assert inbox.gather() == [4]
    assert not inbox
    assert inbox.bytes == 0


def test_one_message_is_always_gathered_however_large():
    inbox = Inbox()
    inbox.put("large", TURN_BYTES_MAX * 3)  # type: ignore[arg-type]
    inbox.put("next", 1)  # type: ignore[arg-type]
    assert inbox.gather() == ["large"]
    assert inbox.gather() == ["next"]


def test_room_is_by_bytes_and_an_empty_inbox_takes_one_of_any_size():
    inbox = Inbox()
    assert inbox.has_room(INBOX_BYTES_MAX * 2)
    inbox.put("a", INBOX_BYTES_MAX - 10)  # type: ignore[arg-type]
    assert inbox.has_room(10)
    assert not inbox.has_room(11)
