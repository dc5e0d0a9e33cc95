"""The fence for deliveries: lease and log are one thing.

What keeps a stale owner from writing is the stream. A delivery is no write, so it takes more: an owner may begin one
only within `LEASE - MARGIN` of the moment when it first sent its last acknowledged append, and nobody appends `Owned`
before a whole `LEASE` has passed since the arrival of the answer that showed the end of the stream. If the old owner's
append had come after that answer, the new one's `Owned` is refused; if it came before, the old one's right is over
first. The margin is for clocks that run unlike: (LEASE - MARGIN) / slowest < LEASE / fastest.

Boot time counts, which goes on while a machine is suspended. An owner that has nothing to deliver renews nothing: it
appends a renewal when it wants to deliver and its right has run out.
"""

from collections.abc import Callable
from typing import Final

LEASE_MS: Final = 5_000
MARGIN_PART: Final = 4  # of the lease: clocks may run between 0.9 and 1.1 of the true rate

assert (1 - 1 / MARGIN_PART) / 0.9 < 1 / 1.1


class Lease:
    """One owner's right, or a taker's wait. `boot_ms` reads the boot clock; a lease of 0 ms is none."""

    def __init__(self, lease_ms: int, boot_ms: Callable[[], int]) -> None:
        self.lease_ms = lease_ms
        self._boot_ms = boot_ms
        self._sent_ms: int | None = None
        self._read_ms: int | None = None
        self.has_read = False
        """The end of the stream has been shown at least once."""

    def now_ms(self) -> int:
        """Boot time."""
        return self._boot_ms()

    def read(self) -> None:
        """The answer that shows the end of the stream has just arrived."""
        self._read_ms = self._boot_ms()
        self.has_read = True

    def released(self) -> None:
        """The one before has let go: nobody is to be waited for."""
        self._read_ms = None

    def wait_ms(self) -> int:
        """How long until `Owned` may be appended."""
        return 0 if self._read_ms is None else max(0, self._read_ms + self.lease_ms - self._boot_ms())

    def acknowledged(self, first_sent_ms: int) -> None:
        """An append was acknowledged that was sent for the first time at that moment."""
        self._sent_ms = first_sent_ms

    def holds(self) -> bool:
        """Whether a delivery may begin now."""
        if not self.lease_ms:
            return True
        right_ms = self.lease_ms - self.lease_ms // MARGIN_PART
        return self._sent_ms is not None and self._boot_ms() - self._sent_ms < right_ms
