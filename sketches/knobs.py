"""Knobs: the choices that change no sketch's shape. A knob type owns sampling, neighbours and encoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class KnobInfo:
    """What a knob means, wherever it appears.

    Attributes:
        default: The value that a schedule written before the knob existed stands for.
        log2: Whether it is encoded by its logarithm (tiles) or as it is (stages).
        about: One line for people.
        seldom: Whether it seldom matters: most samples leave it at its default.
    """

    default: int
    log2: bool
    about: str
    seldom: bool = False


#: Every knob there is, in the order of a batch's columns. A new knob goes to the end.
KNOBS: dict[str, KnobInfo] = {
    "block_m": KnobInfo(128, True, "rows of the output tile"),
    "block_n": KnobInfo(128, True, "columns of the output tile"),
    "block_k": KnobInfo(64, True, "length of one step of the reduction loop"),
    "warps": KnobInfo(4, True, "warps of a program"),
    "stages": KnobInfo(3, False, "depth of the software pipeline"),
    "group_m": KnobInfo(8, True, "tile rows visited together, for reuse in L2"),
    "split_k": KnobInfo(2, True, "parts that the reduction is cut into"),
    "flatten": KnobInfo(0, False, "whether the tile loop and the reduction loop are pipelined as one"),
    "subtile": KnobInfo(1, True, "column pieces that the epilogue is cut into"),
    "specialize": KnobInfo(0, False, "whether some warps only load (takes effect with 4 warps, unflattened)", True),
    "dependent": KnobInfo(0, False, "whether a kernel is launched before the one ahead of it has ended"),
    "unroll": KnobInfo(1, True, "steps of the reduction loop in one turn", True),
    "maxnreg": KnobInfo(0, False, "registers a thread at most, 0 for the compiler's choice", True),
    "evict": KnobInfo(0, False, "gathered operand that the caches drop first: 0 none, 1 columns', 2 rows'", True),
    "cache": KnobInfo(0, False, "whether gathers bypass the first-level cache (.cg)", True),
    "box_h": KnobInfo(8, True, "image rows of a tile that is a box of an image"),
    "box_w": KnobInfo(16, True, "image columns of a tile that is a box of an image"),
}
#: Share of samples that leave a knob that seldom matters at its default.
SELDOM = 0.75
KNOB_NAMES: tuple[str, ...] = tuple(KNOBS)


@dataclass(frozen=True, slots=True)
class Knob:
    """An ordered finite choice of one sketch.

    Attributes:
        name: One of ``KNOBS``.
        values: Its values, rising.
    """

    name: str
    values: tuple[int, ...]

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.int32]:
        """``n`` values, uniform over the choice; most are the default of a knob that seldom matters."""
        drawn = np.asarray(self.values, np.int32)[rng.integers(len(self.values), size=n)]
        info = KNOBS[self.name]
        if info.seldom and info.default in self.values:
            drawn = np.where(rng.random(n) < SELDOM, np.int32(info.default), drawn)
        return drawn

    def neighbours(self, value: int) -> tuple[int, ...]:
        """The values next to ``value``."""
        i = self.values.index(value)
        return self.values[max(i - 1, 0) : i] + self.values[i + 1 : i + 2]

    def nearest(self, value: int) -> int:
        """The value closest to ``value`` in the knob's own scale."""
        scale = self.encode(np.asarray(self.values))
        return self.values[int(np.argmin(np.abs(scale - self.encode(np.asarray([value]))[0])))]

    def encode(self, values: NDArray[np.integer]) -> NDArray[np.float64]:
        """The values on the scale on which neighbours are one apart: log2 for sizes."""
        return np.log2(values) if KNOBS[self.name].log2 else values.astype(np.float64)
