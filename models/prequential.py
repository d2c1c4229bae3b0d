"""How well a model foretold a run's own measurements: each pair is judged before the model learns from it."""

from __future__ import annotations

import numpy as np

from autosched.models.base import Vector

#: A pair counts when its latencies differ by more than this, relatively.
SMALLEST_GAP = 0.02
#: Pairs below which nothing is said.
FEWEST_PAIRS = 30
#: A model that orders no more than this share of the pairs rightly is no better than chance.
CHANCE = 0.5


class Prequential:
    """Share of the pairs of trials whose order was predicted rightly before they were measured.

    Pairs are formed within a round, since all predictions of a round come from one state of the model. What a model
    proposes lies close together, so that the share is lower than on schedules drawn at random: it tells a model that
    helps from one that does not, and no more.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self._right = 0.0

    @property
    def accuracy(self) -> float | None:
        """Share of right pairs, an equal prediction counts half; ``None`` before the first pair."""
        return self._right / self.pairs if self.pairs else None

    @property
    def at_chance(self) -> bool:
        """Whether the model is no better than chance, as far as ``FEWEST_PAIRS`` or more pairs tell."""
        accuracy = self.accuracy
        return accuracy is not None and self.pairs >= FEWEST_PAIRS and accuracy <= CHANCE

    def add(self, predicted: Vector, measured: Vector) -> None:
        """Judge a round.

        Args:
            predicted: Scores at the time of the proposal, ``[n]``.
            measured: log(roofline / latency) of the same trials, ``[n]``.
        """
        gap = measured[:, None] - measured[None, :]
        lead = (predicted[:, None] - predicted[None, :])[gap > np.log1p(SMALLEST_GAP)]
        self.pairs += len(lead)
        self._right += float(np.sum(lead > 0) + 0.5 * np.sum(lead == 0))
