"""What a forward pass of so many tokens costs here, and hence how large a draft tree pays.

On a GPU eighty tokens cost no more than one; on a small processor sixteen cost twice as much, and
three may cost more than four. So time is measured, not assumed: the first steps of a text try the
sizes of a ladder (they verify drafts like any other), and every later step corrects the table.
"""

from collections.abc import Sequence

import numpy as np

LADDER = (1, 8, 16, 4, 32, 2, 48, 81)  # tokens of the first forward passes, in this order
DEAR = 1.8  # times the cost of one token, above which no larger size was ever worth it
WEIGHT = 0.15  # of a new measurement against what the table says
PACE = 0.98  # how slowly the running pace forgets


class Costs:
    """Seconds by number of tokens, and the pace at which tokens come."""

    def __init__(self) -> None:
        """Nothing measured yet."""
        self._untried = list(LADDER)
        self._sizes: list[int] = []
        self._seconds: list[float] = []
        self._gained = 0.0
        self._spent = 0.0

    @property
    def table(self) -> dict[int, float]:
        """Seconds by number of tokens, as far as measured."""
        return dict(zip(self._sizes, self._seconds, strict=True))

    @property
    def largest(self) -> int:
        """The most tokens worth drafting for."""
        return self._untried[0] if self._untried else self._sizes[-1]

    def next_size(self) -> int | None:
        """How many tokens the next step has to have, so that the table is completed; or None."""
        return self._untried[0] if self._untried else None

    def of(self, tokens: int) -> float:
        """Expected seconds of a forward pass of so many tokens."""
        return float(np.interp(tokens, self._sizes, self._seconds))

    def best(self, scores: Sequence[float]) -> int:
        """How many nodes of a tree to verify, the root included.

        With c nodes of scores s_1.. a step gains 1 + s_2 + ... + s_c tokens and takes T(c). The
        long-run pace is highest where gain - pace * T(c) is, the pace being what was reached so
        far; to maximise each step's own ratio would be short-sighted.

        Args:
            scores: of the nodes, the root's 1 first, in the order in which they may be taken.
        """
        most = min(len(scores), self._sizes[-1])
        times = np.interp(np.arange(1, most + 1), self._sizes, self._seconds)
        worth = np.cumsum(scores[:most]) - self._pace() * times
        return int(worth.argmax()) + 1

    def observe(self, tokens: int, seconds: float, gained: int) -> None:
        """Learn from a step: its size, its time, and how many tokens it brought."""
        if self._untried and self._untried[0] == tokens:
            self._insert(tokens, seconds)
            one = self._seconds[0]
            if seconds > DEAR * one:
                self._untried = [size for size in self._untried if size < tokens]
            self._untried = [size for size in self._untried if size != tokens]
        elif self._sizes:
            self._correct(tokens, seconds)
        self._gained = PACE * self._gained + gained
        self._spent = PACE * self._spent + seconds

    def _pace(self) -> float:
        """Tokens in a second: as of late, and at least what plain decoding would give."""
        return max(self._gained / self._spent if self._spent else 0.0, 1 / self._seconds[0])

    def _insert(self, tokens: int, seconds: float) -> None:
        place = int(np.searchsorted(self._sizes, tokens))
        self._sizes.insert(place, tokens)
        self._seconds.insert(place, seconds)

    def _correct(self, tokens: int, seconds: float) -> None:
        """Shift the two neighbouring entries towards what was seen, by their nearness.

        A step that was interrupted by other work counts twice its expected time at most.
        """
        ratio = min(max(seconds / self.of(tokens), 0.5), 2.0) - 1
        right = min(int(np.searchsorted(self._sizes, tokens)), len(self._sizes) - 1)
        left = right if self._sizes[right] <= tokens else max(right - 1, 0)
        width = self._sizes[right] - self._sizes[left]
        share = (tokens - self._sizes[left]) / width if width else 1.0
        self._seconds[right] *= 1 + WEIGHT * ratio * share
        if left != right:
            self._seconds[left] *= 1 + WEIGHT * ratio * (1 - share)
