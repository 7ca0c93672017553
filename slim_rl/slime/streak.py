"""Failures in a row."""

import math


class Streak:
    """Counts failures in a row."""

    def __init__(self) -> None:
        self.count = 0
        self._since = 0.0

    def reaches(self, limit: int, good: bool, now: float = 0.0, seconds: float = math.inf) -> bool:
        """Count one more, or start again after something `good`.

        Args:
            now: seconds on any clock.

        Returns:
            Whether there are `limit` of them, or a quarter of that in no less than `seconds`.
        """
        self.count = 0 if good else self.count + 1
        if self.count == 1:
            self._since = now
        lasting = self.count >= limit / 4 and now - self._since >= seconds
        return self.count >= limit or lasting
