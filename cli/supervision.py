"""A child that is started again when it ends: after growing pauses, and for a bounded time."""

import time
from collections.abc import Callable
from types import TracebackType

from fedlora.adapters.errors import EngineError

from .processes import Child

STEADY = 30.0  # seconds of life after which a child counts as well
PAUSES = (
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
)  # seconds before a start, by the number of ends


class Supervised:
    """A child under supervision; `tend` has to be called again and again.

    Attributes:
        child: the one that runs, or ran last.
        since: when it was started, in seconds of the monotonic clock.
    """

    def __init__(
        self, start: Callable[[], Child], patience: float, tell: Callable[[str], None]
    ) -> None:
        """Start the child.

        Args:
            start: starts it, or another in its place.
            patience: seconds for which it may end early again and again.
            tell: told of each end.
        """
        self._start, self._patience, self._tell = start, patience, tell
        self._ends = 0  # since it was last well
        self._ended = ""  # how; empty while it lives
        self.child = start()
        self.since = self._well = self._due = time.monotonic()

    def __enter__(self) -> "Supervised":
        """Stop the child on leaving."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the child, whatever happened."""
        self.child.stop()

    def tend(self) -> None:
        """Start the child again if it has ended and the pause is over.

        Raises:
            EngineError: if it has ended early again and again for as long as patience lasts.
        """
        now = time.monotonic()
        if not self._ended:
            if now - self.since > STEADY:
                self._well, self._ends = now, 0
            self._ended = self.child.ended()
            if self._ended:
                self._plan(now)
        elif now >= self._due:
            if now - self._well > self._patience:
                raise EngineError(f"given up after {self._patience:g} s of this: {self._ended}")
            self.child, self.since, self._ended = self._start(), now, ""

    def kill(self, reason: str) -> None:
        """End a child that doesn't do its work; `tend` starts another."""
        self._tell(f"{self.child.name} is killed: {reason}")
        self.child.stop(grace=0)

    def _plan(self, now: float) -> None:
        """Clear away what the child left running, and say when another comes."""
        self.child.stop()
        pause = PAUSES[min(self._ends, len(PAUSES) - 1)]
        self._due, self._ends = now + pause, self._ends + 1
        self._tell(f"{self._ended.partition('. ')[0]}; it is started again in {pause:g} s")
