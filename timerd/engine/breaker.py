"""The breaker: whether a type's target is taken to be down, and who may try it then.

It knows only these facts of batches: one succeeded, one failed in a way that is a sign of a down target, one was
answered otherwise. Closed, it is in nobody's way. Open, it lets one probe pass at a time, at
gaps that grow from min_backoff to max_backoff; the first answer that is no sign of a down target closes it.

A probe is a whole batch at first. If the target is not down, but one item makes it hang and nothing else is under way
to show it, whole probes would fail for ever. So after `WHOLE_PROBES` of them a probe is a single timer: it is the
lightest question there is to a target that is down, and soon one without the bad item, which closes the breaker
(ADR 3). For the same reason a timer that fails alone is heard once: an item that hangs the target whenever it is
tried must not close the way to all others by itself.
"""

from typing import Final

from timerd.engine.backoff import backoff_ms
from timerd.engine.timer import RetryPolicy

OPENS_AT: Final = 3  # failures with no success between: one is a hiccup, two a restart, and three cost little
WHOLE_PROBES: Final = 3  # failed probes before they shrink: as many as opened it, so some 7 x min_backoff after it


class Breaker:
    """Of one type. Times are boot ms."""

    def __init__(self) -> None:
        self.open = False
        self.probe: int | None = None
        """The number of the batch that is the probe under way."""
        self.probe_at = 0
        """While open: when the next probe may leave."""
        self.succeeded_at = 0
        """The last success; 0 = none yet."""
        self._failures = 0
        self._heard: set[str] = set()
        self._failed_probes = 0

    @property
    def untroubled(self) -> bool:
        """Whether it knows nothing that would be missed: closed, and no failure since the last success."""
        return not self.open and not self._failures

    @property
    def probes_single(self) -> bool:
        """Whether the next probe is to be one timer."""
        return self._failed_probes >= WHOLE_PROBES

    def send_probe(self, batch_no: int) -> None:
        """This batch leaves as the probe."""
        assert self.open, "a probe of a closed breaker"
        assert self.probe is None, "two probes at a time"
        self.probe = batch_no

    def succeed(self, boot_ms: int) -> None:
        """Some batch, probe or not, was accepted."""
        self.succeeded_at = boot_ms
        self._close()

    def hear(self) -> None:
        """Some batch failed with an answer of a target that is up.

        That ends an outage, but it is no success: it does not make good the failures that have been counted before.
        """
        if self.open:
            self._close()

    def suspect(self, batch_no: int, alone: str | None, policy: RetryPolicy, boot_ms: int, jitter: float) -> None:
        """Some batch failed as if the target was down; `alone` is the id of its only member, if it had one.

        While the breaker is open, only the probe moves the next probe.
        """
        if not self.open:
            if alone in self._heard:
                return
            if alone is not None:
                self._heard.add(alone)
            self._failures += 1
            if self._failures < OPENS_AT:
                return
            self.open = True
            self._failed_probes = 0
        elif batch_no == self.probe:
            self.probe = None
            self._failed_probes += 1
        else:
            return
        gap_ms = round(backoff_ms(policy, self._failed_probes + 1) * jitter)
        self.probe_at = boot_ms + max(1, min(gap_ms, policy.max_backoff_ms))

    def hasten(self, by: int) -> None:
        """The next probe may leave at this moment at the latest."""
        self.probe_at = min(self.probe_at, by)

    def drop_probe(self, batch_no: int) -> None:
        """The batch, if it was the probe, was not sent; the next may leave in its place."""
        if batch_no == self.probe:
            self.probe = None

    def _close(self) -> None:
        self.open = False
        self.probe = None
        self._failures = 0
        self._heard.clear()
