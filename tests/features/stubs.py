"""Sketches made by hand, so that values worked out by hand do not depend on the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autosched.features import FEATURES, extract
from autosched.features.structure import SKETCH
from autosched.sketches.knobs import KNOB_NAMES
from autosched.sketches.op import Op
from autosched.sketches.prepared import PaddedCopy
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.target import PRESETS, Target

H200 = PRESETS["H200"]


@dataclass(frozen=True)
class View:
    """The matrix view as far as features read it."""

    m: int
    n: int
    k: int
    batch: int = 1

    def extent(self, role: str) -> int:
        return int(getattr(self, role))

    copies: ClassVar[dict[str, PaddedCopy]] = {}

    def over(self, op: Op) -> Op:
        return op


@dataclass(frozen=True)
class StubSketch:
    """A sketch as far as features read it."""

    view: View
    given: tuple[tuple[str, int], ...]

    def facts(self) -> dict[str, int]:
        switches = dict.fromkeys((f.name for f in SKETCH if not f.name.startswith("log2_")), 0)
        switches |= dict.fromkeys(("channelwise", "image_outer", "image_n", "image_h", "image_w"), 0)
        return {**switches, "align_a": 16, "align_b": 16, "align_out": 16, **dict(self.given)}


def one(op: Op, facts: dict[str, int], target: Target = H200, **knobs: int) -> dict[str, float]:
    """Features of one schedule of a matrix product, by name; a ``swapped`` one has rows and columns exchanged."""
    extents = [op.extents[x] for x in ("NMK" if facts.get("swapped") else "MNK")]
    sketch = StubSketch(View(*extents), tuple(facts.items()))
    row = [0, *(knobs.get(name, -1) for name in KNOB_NAMES)]
    batch = ScheduleBatch((sketch,), np.array([row], np.int32))  # type: ignore[arg-type]
    values = extract(op, target, batch)
    assert values.dtype == np.float32
    assert values.shape == (1, len(FEATURES))
    return {f.name: float(v) for f, v in zip(FEATURES, values[0], strict=True)}
