"""How often the streams of all open pages look for news: they share the interpreter with the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class StreamPace:
    """The pause of each stream between two looks: the more streams there are, the longer, within bounds."""

    def __init__(self, shortest: float, per_second: float, longest: float) -> None:
        """Pauses are in seconds; `per_second` is the number of looks of all streams together."""
        self.shortest, self.per_second, self.longest = shortest, per_second, longest
        self.streams = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a stream within this context."""
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    def seconds(self) -> float:
        """The pause until the next look; all streams look at the same moments, so one result serves them all."""
        interval = min(max(self.shortest, self.streams / self.per_second), self.longest)
        return interval - time.monotonic() % interval

    async def wait(self) -> None:
        await asyncio.sleep(self.seconds())
