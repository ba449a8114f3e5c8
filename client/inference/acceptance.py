"""How likely a drafted token is to be right, learned from the fate of earlier ones.

A draft is known by three clues: the length of the matching suffix that proposed it, and the
probabilities that the rows of the last two tokens and of the last one give it. Each combination
has counters, which begin at a guess and forget slowly.
"""

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

LENGTHS = (1, 2, 3, 4, 6, 10, 16)  # a match of at least so many tokens is of the next class
CHANCES = (0.0, 0.02, 0.06, 0.15, 0.3, 0.5, 0.75)  # likewise probabilities; 0 is absent
GUESS = 4.0  # how many trials the first guess is worth
FORGET = 400.0  # trials after which both counters are halved
SUFFIX_GUESS = (0.0, 0.1, 0.18, 0.36, 0.53, 0.62, 0.8, 0.94)
PAIR_GUESS = (0.0, 0.02, 0.04, 0.09, 0.2, 0.28, 0.42, 0.7)
ROW_GUESS = (0.0, 0.02, 0.02, 0.05, 0.14, 0.2, 0.27, 0.35)


class Acceptance:
    """Counters of trials and hits by clue.

    Attributes:
        trials: (clues,), of drafts whose parent was accepted.
        hits: (clues,), of those that were accepted too.
    """

    def __init__(self) -> None:
        """The first guesses: the sources err independently."""
        suffix, pair, row = map(np.array, (SUFFIX_GUESS, PAIR_GUESS, ROW_GUESS))
        missed = (1 - suffix)[:, None, None] * (1 - pair)[None, :, None] * (1 - row)[None, None, :]
        chance = (1 - missed).clip(0.002, 0.95).ravel()
        self.trials: npt.NDArray[np.float64] = np.full(chance.shape, GUESS)
        self.hits: npt.NDArray[np.float64] = GUESS * chance
        self._chance: list[float] = chance.tolist()

    def clue(self, match: int, pair: float, row: float) -> int:
        """The clue of a draft; 0 for a source that did not propose it."""
        a = bisect_right(LENGTHS, match)
        b = bisect_right(CHANCES, pair) if pair > 0 else 0
        c = bisect_right(CHANCES, row) if row > 0 else 0
        return (a * len(PAIR_GUESS) + b) * len(ROW_GUESS) + c

    def chance(self, clue: int) -> float:
        """Probability that such a draft is right if its parent is."""
        return self._chance[clue]

    def learn(self, clue: int, right: bool) -> None:
        """Count the fate of a draft whose parent was accepted."""
        self.trials[clue] += 1
        self.hits[clue] += right
        if self.trials[clue] > FORGET:
            self.trials[clue] /= 2
            self.hits[clue] /= 2
        self._chance[clue] = float(self.hits[clue] / self.trials[clue])

    def restore(self, trials: npt.NDArray[np.float64], hits: npt.NDArray[np.float64]) -> None:
        """Take counters from an earlier session."""
        self.trials, self.hits = trials, hits
        self._chance = (hits / trials).tolist()
