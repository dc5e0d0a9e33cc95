"""Ports: what the shell needs of the world, declared here, implemented by the adapters, joined in the roof.

Everything here is a Protocol or a plain value. The errors that may come through are in `engine.errors`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from timerd.engine.now import Now
from timerd.engine.plan import Plan, Seat
from timerd.engine.rate import PER_SECOND_MAX, PER_SECOND_MIN
from timerd.engine.record import Record
from timerd.engine.ring import RingTable
from timerd.engine.secrecy import masked_repr
from timerd.engine.timer import BodyRef, TimerType

INSTANT_MAX: Final = 253_402_300_799_999  # the last one with a year of four digits


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> Now: ...


class Frame(msgspec.Struct, frozen=True):
    """The records of one turn of one shard: recovered whole or not at all. `lsn` is dense, from 1."""

    shard: int
    lsn: int
    records: Sequence[Record]


class OldestSegment(NamedTuple):
    """What the oldest segment holds."""

    last_lsns: Mapping[int, int]
    """The last lsn of each shard that has a frame in it."""


class BodySegment(NamedTuple):
    """One body segment. `bytes` is its size on disk, `sealed` says that nothing more goes into it."""

    number: int
    bytes: int
    sealed: bool


class Body(NamedTuple):
    """A payload that lies apart, as a scan of its segment finds it."""

    id: str
    place: BodyRef
    data: bytes | None
    """None: it fails its checksum."""


class LogUsage(NamedTuple):
    """Bytes on disk, by kind, filler included."""

    frame_bytes: int
    body_bytes: int
    segment_bytes: int
    """The size of one segment of frames."""
    spare_bytes: int = 0
    """The part of `frame_bytes` that is kept for later: zero-filled segments that hold nothing yet."""
    leaving_bytes: int = 0
    """By how much more was reserved, or asked for, when the room was made that is just being given back."""
    beyond_bytes: int = 0
    """What frames may take beyond what is reserved and granted."""


class Log(Protocol):
    """A log of frames for one or many shards, and the bodies beside it. One append at a time.

    Call `replay` to its end before the first `append`.
    """

    durability: str
    """What an append's return means: fsync | quorum | quorum-interval | none."""
    replicas: int
    """On how many machines each frame is kept."""
    shares_bodies: bool
    """Whether a shard may refer to a body that was placed for another, so that timers may move between them."""
    sync: str
    """When these have it on disk: `always` (before an append returns), an interval as `120s`, `never`, `unknown`."""

    @property
    def fenced(self) -> Collection[int]:
        """Shards that another writer has taken, known when an append returns: what it was given for them is not stored,
        and nothing will be. Their time here is over; the other shards' goes on."""
        ...

    def is_confirmed(self) -> bool:
        """Whether a delivery of timers of its shards may begin at this moment, without asking anybody."""
        ...

    async def confirm(self) -> bool:
        """Before a delivery: whether all its shards are still ours, however long that takes. Raises LogFailed."""
        ...

    async def is_current(self) -> bool:
        """Whether it seems to end where we left it: else `confirm` will tell. Costs no append, and never raises."""
        ...

    @property
    def body_answers(self) -> int:
        """Grows with each answer that reads of bodies get: so who waits for one sees whether it gets on."""
        ...

    begun: bool
    """After replay: the log was there before this process."""

    def replay(self) -> AsyncIterator[Frame]:
        """All frames still held, each shard's in the order in which they were written. Raises CorruptLog."""
        ...

    async def check_bodies(self, places: Sequence[BodyRef]) -> None:
        """After replay: raise CorruptLog unless every live body's file exists and is long enough."""
        ...

    async def append(self, frames: Sequence[Frame], waiting_bytes: int = 0) -> int:
        """Write the frames, one a shard or more, all at once; return when they are durable, or their shard is fenced.

        Bodies placed before are durable by then as well. What was granted counts as used no longer, but for
        `waiting_bytes` that later frames will take. Returns the bytes that these took. Raises LogFailed (the process
        must end).
        """
        ...

    async def grant(self, arm_bytes: int, reserve_bytes: int, body_bytes: int | None = None) -> bool:
        """Whether `arm_bytes` more may be accepted while `reserve_bytes` and one segment stay free.

        Room that can be made is waited for, which other grants do in line; where it can't be had this says so at once.

        `body_bytes` of the `arm_bytes` go into body segments (None: it is not known how many). The reserve is room for
        the completions of everything accepted and for the largest checkpoint slice. What is granted counts as used
        until an append that takes it along has returned.
        """
        ...

    def keep(self, reserve_bytes: int) -> None:
        """The reserve is this from now on; whoever asks for room says it too. It is made, or given back, afterwards."""
        ...

    def unsettled(self) -> bool:
        """Whether something was placed or granted that waits for an append: `append([])` settles it."""
        ...

    def low(self) -> bool:
        """Whether appends are living on the reserve: nothing but what ends or shrinks timers should be written."""
        ...

    def place_bodies(self, shard: int, bodies: Sequence[tuple[str, bytes]]) -> list[BodyRef]:
        """Give each (id, payload) of a shard its place. They are written and synced by the next append."""
        ...

    def shard_of(self, place: BodyRef) -> int | None:
        """Whose body lies there, if places name that; None: all of a process lie in one log."""
        ...

    async def read_bodies(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        """The payloads; None for one that can't be read or fails its checksum. Bodies just placed can be read."""
        ...

    def body_segments(self) -> list[BodySegment]:
        """All body segments, oldest first."""
        ...

    def scan_bodies(self, number: int) -> AsyncIterator[Sequence[Body]]:
        """The bodies of one sealed segment, in chunks of about 1 MiB."""
        ...

    async def drop_bodies(self, number: int) -> None:
        """Delete a body segment in which nothing is live by what is durable."""
        ...

    def oldest(self) -> OldestSegment | None:
        """The oldest segment, unless it is the one being written."""
        ...

    async def trim(self, needed: Mapping[int, int]) -> int:
        """Delete the oldest segments while they hold only frames before their shards' `needed` lsns; says how many."""
        ...

    def usage(self) -> LogUsage: ...

    async def close(self) -> None:
        """Let go of files and lock. Appends nothing."""
        ...


class FollowedLog(Log, Protocol):
    """A log that somebody else may still be writing while it is replayed."""

    at_end: Callable[[], Awaitable[None]]
    """Called when the replay has come to the present end and waits for more, and now and then while it does."""
    is_wanted: Callable[[], bool]
    """Asked when the replay could end: False, and it goes on reading what comes."""

    def look_soon(self) -> None:
        """There may be more, or nobody else any longer: look at once, not only now and then."""
        ...


class ApiKey(msgspec.Struct, frozen=True):
    """A key that opens the API, without its secret. Times are Unix ms. Bounds are looked at where one is decoded."""

    id: Annotated[str, Meta(pattern=r"^[a-z2-7]{8}\Z")]
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    """A label; several keys may have the same one, as an old and a new key do during a rotation."""
    scopes: tuple[str, ...]
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of the key."""
    created_at: Annotated[int, Meta(ge=0, le=INSTANT_MAX)]
    expires_at: Annotated[int, Meta(ge=0, le=INSTANT_MAX)] | None = None
    max_per_second: Annotated[float, Meta(ge=PER_SECOND_MIN, le=PER_SECOND_MAX)] | None = None


class Utilisation(msgspec.Struct, frozen=True):
    """How full a shard was, by its owner. Times are Unix ms."""

    shard: int
    owner: str
    timers: int
    capacity: int
    at: int


class Catalog(Protocol):
    """What is not a timer: types, API keys, the ring table, how full the shards are.

    A change is durable on return, or raises CatalogFull.
    """

    async def types(self) -> list[TimerType]: ...
    async def put_type(self, type: TimerType) -> None: ...
    async def delete_type(self, name: str) -> None: ...
    async def keys(self) -> list[ApiKey]: ...
    async def put_key(self, key: ApiKey) -> None: ...
    async def delete_key(self, id: str) -> None: ...
    async def ring(self) -> RingTable | None: ...
    async def put_ring(self, table: RingTable) -> None: ...
    async def utilisation(self) -> list[Utilisation]: ...
    async def put_utilisation(self, rows: Sequence[Utilisation]) -> None: ...
    async def close(self) -> None: ...


class Member(NamedTuple):
    """One process of a cluster."""

    name: str
    url: str
    """Where the others reach it."""
    life: str
    """Drawn at each start: a node that is back is another member of the same name."""

    @property
    def seat(self) -> Seat:
        """What plans call it."""
        return Seat(self.name, self.life)


class Link(NamedTuple):
    """How a node and the servers of its cluster have got on."""

    connected: bool = False
    appends_unknown: int = 0
    """Appends of which no answer came."""
    shards_fenced: int = 0
    """Appends that found another writer's in their place."""
    heartbeat_age_ms: int = 0
    """Since one of this node was last known to be stored: what shows that the servers are no majority, also to a node
    that has nothing to append."""


Word = Literal["warm", "here", "gone"]
"""Of a shard: the speaker could take it at once; has it, and lets go when the taker is warm; has let go of it."""


class Ensemble(Protocol):
    """Who is there, and the plan that all of them go by. What it says may be a moment old, and harms nobody then."""

    me: Member
    on_change: Callable[[], None]
    """Called when members or plan are others than before."""
    on_catalogue_change: Callable[[], None]
    """Called when types, keys or anything else in the catalogue may be others than before."""
    on_said: Callable[[Word, int, Seat], None]
    """Called with what somebody says of a shard (`say`). It may be late, untrue or missing."""
    displaced: bool
    """Another process has joined under this one's name: this one is no member any more, and has to end."""

    def members(self) -> list[Member]:
        """Who is there by what was heard, by name. While nothing is heard it is who was there before."""
        ...

    def link(self) -> Link:
        """How it stands with the servers."""
        ...

    def silent(self) -> list[Member]:
        """Members that have missed a beat: most of those who are gone soon, and some who are only slow."""
        ...

    def is_settled(self) -> bool:
        """Whether it has listened for so long that whoever died before is not taken for alive."""
        ...

    def seen_at(self, name: str) -> int | None:
        """When a node's last heartbeat was heard here, in Unix ms."""
        ...

    def plan(self) -> Plan | None:
        """The newest that is known here; None: none was ever published."""
        ...

    async def publish(self, plan: Plan) -> bool:
        """Put the successor of the plan that is known here. False: another one has been put meanwhile, which `plan`
        tells now, or it is not known whether this one was. Never raises for what the servers do."""
        ...

    async def refresh(self) -> bool:
        """Read the plan anew, from who knows it first. False: the servers don't answer."""
        ...

    async def say(self, word: Word, shard: int) -> None:
        """Say something of a shard to all. Best effort: it never raises, and nobody has to have heard it."""
        ...

    async def leave(self) -> None:
        """Say that this one goes, so that nobody has to wait to notice. Best effort. What others say is still heard,
        and who is there, and the plan."""
        ...


class Request(msgspec.Struct, frozen=True):
    """One HTTP request to a target."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    timeout_ms: int
    """For the whole exchange."""
    answer_bytes_max: int
    """An answer's body is read up to here."""
    method: str = "POST"
    guarded: bool = False
    """The target was named by a caller, not by the operator: only addresses that are allowed are connected to."""

    def __repr__(self) -> str:
        return masked_repr(self, "headers", "body")


class Answer(msgspec.Struct, frozen=True):
    """What came back. Exactly one of `status` and `error` is set."""

    status: int | None = None
    headers: Mapping[str, str] = {}
    """Lower-case names."""
    body: bytes = b""
    overlong: bool = False
    """The body went on behind `answer_bytes_max`."""
    error: str | None = None
    """connect: no connection was made, nothing was sent. timeout | lost: it may have arrived. forbidden: a guarded
    request to an address that is not allowed; nothing was sent."""
    detail: str = ""


class Deliver(Protocol):
    """One attempt of one batch, or of one callback."""

    async def post(self, request: Request) -> Answer:
        """Never raises for what the target does; a cancelled call closes its connection."""
        ...

    async def close(self) -> None: ...


class NoReply(NamedTuple):
    """In place of a peer's answer."""

    sent: bool
    """Some of the question may have arrived; else none of it has, or the peer has refused to read it."""
    reason: str


class Peers(Protocol):
    """The other nodes of a cluster, to be asked. Questions and answers are bytes; what they say is `questions`'."""

    async def ask(self, member: Member, question: bytes, timeout_s: float) -> bytes | NoReply:
        """Never raises for what the peer does."""
        ...

    async def close(self) -> None: ...
