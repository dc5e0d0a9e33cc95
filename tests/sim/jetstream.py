"""Streams as JetStream keeps them, as far as timerd asks: a value that is told the time and answers at once.

It does what a server does with the requests of `timerd_cluster.connection`: expected sequences, the last message of a
subject, purges, reads in batches. Whatever was there stays readable for a reader whose replica is behind (`at`), so a
stale answer is one that was right some time ago.

It knows no network, no faults and nothing of what messages mean. tests/cluster runs the same tests against it and
against real servers.
"""

import base64
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, Final

REPLICAS: Final = ("n0", "n1", "n2")
BATCH_END: Final = "204"
MISSING: Final = "404"
TOO_MANY: Final = "413"
LASTS_MAX: Final = 1_024
STATUS: Final = "Status"
DEFAULTS: Final[Mapping[str, Any]] = {
    "retention": "limits", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0,
    "max_msgs_per_subject": -1, "max_msg_size": -1, "discard": "old", "storage": "file", "num_replicas": 1,
    "duplicate_window": 120_000_000_000, "allow_direct": False, "mirror_direct": False, "sealed": False,
    "deny_delete": False, "deny_purge": False, "allow_rollup_hdrs": False, "consumer_limits": {},
    "allow_msg_ttl": False,
    "metadata": {},
}  # fmt: skip


class Refusal(Exception):
    """JetStream's own error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.answer = {"error": {"code": 400, "err_code": code, "description": text}}


class Kept:
    """A message, from when to when it was there."""

    __slots__ = ("data", "from_s", "headers", "sequence", "subject", "until_s")

    def __init__(self, sequence: int, subject: str, headers: Mapping[str, str], data: bytes, now_s: float) -> None:
        self.sequence = sequence
        self.subject = subject
        self.headers = headers
        self.data = data
        self.from_s = now_s
        self.until_s = inf

    def is_there(self, at_s: float) -> bool:
        """Whether it was there at that moment."""
        return self.from_s <= at_s < self.until_s


class Stream:
    """One stream. Moments never go back."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = dict(DEFAULTS) | dict(config)
        self.bytes = 0
        self._all: list[Kept] = []
        self._times: list[float] = []
        self._first = 0  # index of the first that is there
        self._subjects: dict[str, list[Kept]] = {}

    @property
    def last_sequence(self) -> int:
        """Of the newest message there ever was."""
        return len(self._all)

    def takes(self, subject: str) -> bool:
        """Whether a message of that subject goes in here."""
        return any(fits(pattern, subject) for pattern in self.config["subjects"])

    def overlaps(self, pattern: str) -> bool:
        """Whether it has subjects of that pattern."""
        return any(fits(pattern, subject) for subject in self.config["subjects"])

    def store(self, subject: str, headers: Mapping[str, str], data: bytes, now_s: float) -> Kept:
        """Raises Refusal."""
        expected = headers.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != len(self._all):
            raise Refusal(10071, f"wrong last sequence: {len(self._all)}")
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            last = self.last_of(headers.get("Nats-Expected-Last-Subject-Sequence-Subject", subject), now_s)
            if int(expected) != (last.sequence if last else 0):
                raise Refusal(10071, f"wrong last sequence: {last.sequence if last else 0}")
        of_subject = self._subjects.setdefault(subject, [])
        most = self.config["max_msgs_per_subject"]
        if most == 1 or headers.get("Nats-Rollup") == "sub":
            for old in reversed(of_subject):
                if old.until_s <= now_s:
                    break
                self._end(old, now_s)
        kept = Kept(len(self._all) + 1, subject, headers, data, now_s)
        self._all.append(kept)
        self._times.append(now_s)
        of_subject.append(kept)
        self.bytes += len(data)
        return kept

    def at(self, sequence: int, at_s: float) -> Kept | None:
        """The message of a sequence."""
        if not 0 < sequence <= len(self._all):
            return None
        kept = self._all[sequence - 1]
        return kept if kept.is_there(at_s) else None

    def last_of(self, subject: str, at_s: float) -> Kept | None:
        """The last message of a subject."""
        for kept in reversed(self._subjects.get(subject, ())):
            if kept.is_there(at_s):
                return kept
        return None

    def lasts(self, pattern: str, at_s: float) -> list[Kept]:
        """The last message of each subject that fits, in the order of sequences."""
        found = [self.last_of(subject, at_s) for subject in self._subjects if fits(pattern, subject)]
        return sorted((kept for kept in found if kept is not None), key=lambda kept: kept.sequence)

    def behind(self, sequence: int, at_s: float) -> Iterator[Kept]:
        """What lies at `sequence` and behind."""
        for index in range(max(1, sequence) - 1, len(self._all)):
            if self._all[index].is_there(at_s):
                yield self._all[index]

    def bounds(self, at_s: float) -> tuple[int, int]:
        """First and last sequence, as the server tells them."""
        last = bisect_right(self._times, at_s)
        while self._first < len(self._all) and self._all[self._first].until_s <= at_s:
            self._first += 1
        first = self._first
        while first and self._all[first - 1].until_s > at_s:  # it was there then
            first -= 1
        return (min(first, last) + 1 if last else 0), last

    def counts(self, pattern: str, at_s: float) -> dict[str, int]:
        """How many messages there are of each subject that fits."""
        found = {}
        for subject, messages in sorted(self._subjects.items()):
            if fits(pattern, subject) and (count := sum(kept.is_there(at_s) for kept in messages)):
                found[subject] = count
        return found

    def purge(self, wanted: Mapping[str, Any], now_s: float) -> int:
        """Delete what is before a sequence, or of a subject; how many."""
        before, pattern = wanted.get("seq") or inf, wanted.get("filter") or ">"
        gone = 0
        for index in range(self._first, len(self._all)):
            kept = self._all[index]
            if kept.sequence >= before:
                break
            if kept.until_s > now_s and fits(pattern, kept.subject):
                self._end(kept, now_s)
                gone += 1
        return gone

    def _end(self, kept: Kept, now_s: float) -> None:
        kept.until_s = now_s
        self.bytes -= len(kept.data)


class JetStream:
    """All streams of a set of servers. `request` answers as they would, at the moment `now_s`."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.on_stored: Callable[[str, Kept, Any], None] = lambda stream, kept, by: None
        """Told of each message that has just been stored, and by whom it came."""

    def stream_of(self, subject: str) -> str | None:
        """Whose request this is: a stream's name, or None."""
        if subject.startswith("$JS.API."):
            verb = subject.removeprefix("$JS.API.")
            for start in (
                "STREAM.MSG.GET.",
                "STREAM.INFO.",
                "STREAM.PURGE.",
                "STREAM.CREATE.",
                "STREAM.DELETE.",
                "DIRECT.GET.",
            ):
                if verb.startswith(start):
                    return verb.removeprefix(start)
            return None
        return next((name for name, stream in self.streams.items() if stream.takes(subject)), None)

    def publish(self, name: str, subject: str, headers: Mapping[str, str], data: bytes, now_s: float, by: Any) -> Any:
        """Store a message. Raises Refusal."""
        kept = self.streams[name].store(subject, headers, data, now_s)
        self.on_stored(name, kept, by)
        return {"stream": name, "seq": kept.sequence}

    def ask(self, verb: str, body: Mapping[str, Any], at_s: float, now_s: float) -> Mapping[str, Any]:
        """An API call whose answer is JSON; reads are as of `at_s`. Raises Refusal."""
        what, _, name = verb.rpartition(".")
        if verb == "INFO":
            storage = sum(stream.bytes for stream in self.streams.values())
            return {"storage": storage, "streams": len(self.streams), "limits": {"max_storage": -1}}
        if verb == "STREAM.NAMES":
            names = sorted(name for name, each in self.streams.items() if each.overlaps(body.get("subject", ">")))
            return {"total": len(names), "offset": 0, "streams": names or None}
        stream = self.streams.get(name)
        if what == "STREAM.CREATE":
            return self._create(name, body, now_s)
        if stream is None:
            raise Refusal(10059, "stream not found")
        match what:
            case "STREAM.INFO":
                return self._info(stream, body, at_s)
            case "STREAM.DELETE":
                del self.streams[name]
                return {"success": True}
            case "STREAM.PURGE":
                return {"success": True, "purged": stream.purge(body, now_s)}
            case "STREAM.MSG.GET":
                kept = self._one(stream, body, at_s)
                if kept is None:
                    raise Refusal(10037, "no message found")
                return {"message": _shown(kept)}
        raise AssertionError(f"the fake servers don't know {verb}")

    def get(self, name: str, body: Mapping[str, Any], at_s: float) -> list[tuple[bytes, dict[str, str]]]:
        """A direct read: (data, headers) of each message, and the status that ends it where one does."""
        stream = self.streams[name]
        if "batch" not in body:
            kept = self._one(stream, body, at_s)
            return [_direct(kept)] if kept else [(b"", {STATUS: MISSING})]
        if "multi_last" in body:
            lasts = [kept for pattern in body["multi_last"] for kept in stream.lasts(pattern, at_s)]
            if len(lasts) > LASTS_MAX:
                return [(b"", {STATUS: TOO_MANY})]
            found: Iterator[Kept] | list[Kept] = lasts
        else:
            found = stream.behind(body["seq"], at_s)
        answers: list[tuple[bytes, dict[str, str]]] = []
        left = body.get("max_bytes", inf)
        for kept in found:
            if len(answers) == body["batch"] or (answers and left < len(kept.data)):
                break
            left -= len(kept.data)
            answers.append(_direct(kept))
        return [*answers, (b"", {STATUS: BATCH_END if answers else MISSING})]

    def _one(self, stream: Stream, body: Mapping[str, Any], at_s: float) -> Kept | None:
        if "last_by_subj" in body:
            return stream.last_of(body["last_by_subj"], at_s)
        return stream.at(body["seq"], at_s)

    def _create(self, name: str, config: Mapping[str, Any], now_s: float) -> Mapping[str, Any]:
        made = Stream(config)
        there = self.streams.setdefault(name, made)
        if there.config != made.config:
            raise Refusal(10058, "stream name already in use with a different configuration")
        return self._info(there, {}, now_s)

    def _info(self, stream: Stream, body: Mapping[str, Any], at_s: float) -> Mapping[str, Any]:
        first, last = stream.bounds(at_s)
        state: dict[str, Any] = {"first_seq": first, "last_seq": last, "messages": max(0, last - first + 1)}
        answer: dict[str, Any] = {"config": stream.config, "state": state}
        if (pattern := body.get("subjects_filter")) is not None:
            counts = list(stream.counts(pattern, at_s).items())
            state["subjects"] = dict(counts[body.get("offset", 0) :])
            answer |= {"total": len(counts), "offset": body.get("offset", 0), "limit": 100_000}
        replicas = REPLICAS[1 : stream.config["num_replicas"]]
        answer["cluster"] = {"leader": REPLICAS[0], "replicas": [{"name": name} for name in replicas]}
        return answer


def fits(pattern: str, subject: str) -> bool:
    """Whether a subject is one of a pattern with `*` and `>`."""
    if pattern in (subject, ">"):
        return True
    wanted, given = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


def _direct(kept: Kept) -> tuple[bytes, dict[str, str]]:
    return kept.data, {**kept.headers, "Nats-Sequence": str(kept.sequence), "Nats-Subject": kept.subject}


def _shown(kept: Kept) -> Mapping[str, Any]:
    block = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in kept.headers.items()) + "\r\n"
    return {
        "subject": kept.subject,
        "seq": kept.sequence,
        "hdrs": base64.b64encode(block.encode()).decode(),
        "data": base64.b64encode(kept.data).decode(),
    }


def read_json(data: bytes) -> Mapping[str, Any]:
    """The body of a request."""
    body: Mapping[str, Any] = json.loads(data) if data else {}
    return body
