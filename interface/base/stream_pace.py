"""How often all open pages look for news: they share the interpreter with the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

ABSENT_SECONDS = 5  # a page that asks so much later than agreed counts as closed


class StreamPace:
    """The pause of each page between two looks: the more pages there are, the longer, within bounds.

    A page either has a stream, or asks again by itself after an agreed pause.
    """

    def __init__(self, shortest: float, per_second: float, longest: float) -> None:
        """Pauses are in seconds; `per_second` is the number of looks of all pages together."""
        self.shortest, self.per_second, self.longest = shortest, per_second, longest
        self.streams = 0
        self._expected: dict[str, float] = {}
        """By page without a stream, the time until which it should have asked again."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a stream within this context."""
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    def expect(self, page: str, seconds: float) -> None:
        """Count a page without a stream, which asks again after so many seconds."""
        self._expected[page] = time.monotonic() + seconds + ABSENT_SECONDS

    def pages(self) -> int:
        """The number of open pages."""
        now = time.monotonic()
        self._expected = {page: until for page, until in self._expected.items() if until > now}
        return self.streams + len(self._expected)

    def seconds(self) -> float:
        """The pause until the next moment; all pages look at the same moments, so one result serves them all."""
        interval = self._interval()
        return interval - time.monotonic() % interval

    def moment(self) -> int:
        """The number of the last moment."""
        return int(time.monotonic() // self._interval())

    def _interval(self) -> float:
        return min(max(self.shortest, self.pages() / self.per_second), self.longest)

    async def wait(self) -> None:
        await asyncio.sleep(self.seconds())
