"""``why_invalid``: which schedules cannot work, each with its reason. Said once, vectorised, and only on a proven bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import Target

#: Reason of each code; code 0 is a schedule against which nothing is known.
REASONS: tuple[str, ...] = (
    "",
    "shared memory: the pipeline's buffers alone exceed what one program can have",
    "registers: the accumulator alone exceeds 255 registers a thread",
    "split: more parts than steps of the reduction loop",
    "tile: a block holds at most 2^20 elements",
    "subtile: a column piece is narrower than 16 bytes or 16 columns",
)


@dataclass(frozen=True)
class Rejections:
    """The verdict on each row of a batch.

    Attributes:
        codes: int16, index into ``reasons``; 0 where nothing is known against the row.
    """

    codes: NDArray[np.int16]
    reasons: tuple[str, ...] = REASONS

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Rows against which nothing is known."""
        return self.codes == 0

    def counts(self) -> dict[str, int]:
        """Rejected rows by reason."""
        found, numbers = np.unique(self.codes[self.codes > 0], return_counts=True)
        return {self.reasons[code]: int(n) for code, n in zip(found, numbers, strict=True)}


def shared_lower_bound(op: Op, batch: ScheduleBatch) -> NDArray[np.int64]:
    """Bytes of shared memory that a schedule needs at least.

    A pipeline of s stages holds s - 1 tiles of each pipelined operand at least (mma.sync) and s on the wgmma path
    (seen in compiled kernels); TMA boxes always lie in shared memory, one of each even without a pipeline. Rows whose
    operand is aligned to fewer than 16 bytes may not be pipelined, so they count nothing, and neither does a loop of
    one step, which is no loop once it is compiled.
    """
    bm, bn, bk = (batch.column(x).astype(np.int64) for x in ("block_m", "block_n", "block_k"))
    stages = np.where(_steps(batch) > 1, batch.column("stages").astype(np.int64), 1)
    total = np.zeros(len(batch), np.int64)
    left, right = op.operand(op.products[0].left), op.operand(op.products[0].right)
    for side, operand, tile in (("a", left, bm * bk), ("b", right, bk * bn)):
        copies = np.where(batch.fact(f"tma_{side}") == 1, np.maximum(stages - 1, 1), np.maximum(stages - 1, 0))
        pipelined = (batch.fact(f"tma_{side}") == 1) | (batch.fact(f"align_{side}") >= 16)
        total += np.where(pipelined, copies * tile * operand.dtype.bytes, 0)
    return total


def why_invalid(op: Op, target: Target, batch: ScheduleBatch) -> Rejections:
    """The reason against each row, or code 0. Where several apply, the first of ``REASONS`` is told."""
    bm, bn, bk = (batch.column(x).astype(np.int64) for x in ("block_m", "block_n", "block_k"))
    warps = batch.column("warps").astype(np.int64)
    steps = _steps(batch)
    out_bytes = op.output.dtype.bytes
    subtile = np.maximum(batch.column("subtile"), 1)
    checks = (
        shared_lower_bound(op, batch) > target.shared_per_block,
        len(op.products) * bm * bn > 255 * 32 * warps,
        batch.column("split_k") > steps,
        np.maximum(np.maximum(bm * bn, bm * bk), bk * bn) > 1 << 20,
        (subtile > 1) & ((bn // subtile < 16) | (bn // subtile * out_bytes < 16)),
    )
    codes = np.zeros(len(batch), np.int16)
    for code, bad in reversed(list(enumerate(checks, 1))):
        codes[bad] = code
    return Rejections(codes)


def explain_invalid(op: Op, target: Target, schedule: Schedule) -> str | None:
    """The reason against one schedule, with the schedule's name, or ``None``."""
    code = int(why_invalid(op, target, ScheduleBatch.of((schedule.sketch,), [schedule])).codes[0])
    return f"{schedule.to_json()}: {REASONS[code]}" if code else None


def _steps(batch: ScheduleBatch) -> NDArray[np.int64]:
    """Steps of the whole reduction loop."""
    return -(-batch.k_extents[batch.sketch_index] // batch.column("block_k"))
