"""How much a run may measure, and for how long."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from autosched.errors import InvalidInputError

#: Rounds of ``FIRST_ROUND`` for the first ``FIRST_TRIALS`` trials: what the first ones teach is worth most.
FIRST_ROUND, FIRST_TRIALS = 4, 16
#: Rounds after that: a quarter of the budget within these bounds, so that the compile workers are kept busy.
SMALLEST_ROUND, LARGEST_ROUND = 8, 16


@dataclass(frozen=True)
class Budget:
    """When to stop: after ``trials``, or before the trial that would end after ``seconds``, whichever comes first."""

    trials: int | None = 64
    seconds: float | None = None

    def __post_init__(self) -> None:
        try:
            operator.index(0 if self.trials is None else self.trials)
        except TypeError:
            raise InvalidInputError(f"budget of {self.trials!r} trials", "give a whole number") from None
        for name, value in (("trials", self.trials), ("seconds", self.seconds)):
            if value is not None and not value >= 0:
                raise InvalidInputError(f"budget of {value} {name}", "give 0 or more")
        if self.trials is None and self.seconds is None:
            raise InvalidInputError("a budget without trials and seconds", "give one of them")

    def round_size(self, asked: int) -> int:
        """Trials of the next round; 0 when those asked for so far are all that the budget allows.

        Args:
            asked: Trials of the rounds before it.
        """
        later = SMALLEST_ROUND if self.trials is None else min(LARGEST_ROUND, self.trials // 4)
        size = FIRST_ROUND if asked < FIRST_TRIALS else max(SMALLEST_ROUND, later)
        return size if self.trials is None else max(0, min(size, self.trials - asked))
