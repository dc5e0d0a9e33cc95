"""Straight lines through samples, and whether their slope is more than noise."""

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

BLOCK_S: Final = 20.0  # neighbouring samples say the same: their means are what counts as one
SURE: Final = 4.0  # standard errors
WORTH: Final = 0.04  # of the mean: a rise over all of the time that matters


class Slope(NamedTuple):
    """Of something over time."""

    per_hour: float
    error: float
    """Of `per_hour`, by what is left beside the line."""
    rise: float
    """Over the time that was looked at."""
    mean: float
    seconds: float

    @property
    def grows(self) -> bool:
        """Whether it is more than noise, and worth a look."""
        return self.per_hour > SURE * self.error and self.rise > WORTH * self.mean


def slope(at_s: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Least squares over the means of blocks; None: there are too few to say."""
    blocks: dict[int, list[tuple[float, float]]] = {}
    for at, value in zip(at_s, values, strict=True):
        blocks.setdefault(int(at // BLOCK_S), []).append((at, value))
    points = [(statistics.fmean(a for a, _ in some), statistics.fmean(v for _, v in some)) for some in blocks.values()]
    if len(points) < 4:
        return None
    mean_at = statistics.fmean(at for at, _ in points)
    mean = statistics.fmean(value for _, value in points)
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    per_s = sum((at - mean_at) * (value - mean) for at, value in points) / spread
    left = sum((value - mean - per_s * (at - mean_at)) ** 2 for at, value in points)
    error = math.sqrt(left / (len(points) - 2) / spread)
    seconds = points[-1][0] - points[0][0]
    return Slope(per_s * 3600, error * 3600, per_s * seconds, mean, seconds)
