"""``why_invalid``: which schedules are not worth compiling, each with its reason, vectorised.

Only on a proven bound: a rejected schedule does not compile or launch, must spill its accumulator, or has programs
without work. The tests hold this against every schedule of the recorded tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    "subtile: a box to store is narrower than 16 bytes",
    "specialize: sound with 4 warps, 64 rows, boxes, one accumulator, unflattened, with stores through pointers alone",
    "block_k: a box over the reduction would read into the next matrix of the batch",
    "maxnreg: fewer registers than the accumulator alone takes",
    "sum: a thread has less than one element of the tile",
    "box: rows and columns of an image box are more than the tile has",
    "cache: a gather that is not asynchronous cannot both bypass the first level and be evicted first",
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
        valid: NDArray[np.bool_] = self.codes == 0
        return valid

    def counts(self) -> dict[str, int]:
        """Rejected rows by reason."""
        found, numbers = np.unique(self.codes[self.codes > 0], return_counts=True)
        return {self.reasons[code]: int(n) for code, n in zip(found, numbers, strict=True)}


def shared_lower_bound(op: Op, target: Target, batch: ScheduleBatch) -> NDArray[np.int64]:
    """Bytes of shared memory that a schedule needs at least, as seen in the compiled kernels of the recorded tables.

    A pipeline of s >= 2 stages holds s tiles of each pipelined operand on the wgmma path (a tile of 64 rows or more, 4
    or 8 warps, inputs of 16 or 8 bits or tf32, on sm_90) and s - 1 on the mma.sync path, once for each copy of an
    unrolled body (for boxes alone where it is flattened with the loop over tiles). Without a pipeline only boxes lie
    there, one after the other: with one stage, or with a loop of one step, which is no loop once it is compiled (unless
    it stands in a persistent program's loop over tiles, which is then pipelined), or of fewer steps than are unrolled.

    A pointer operand aligned to fewer than 16 bytes may not be pipelined and counts nothing; nor does one of which a
    thread's share is below the 4 bytes of the smallest asynchronous copy, nor one of 8-bit numbers whose rows do not
    run along the reduction (the tensor cores take it transposed, through registers), nor one in a flattened loop whose
    tiles overhang its rows or columns (their mask then changes with the loop). A persistent program keeps the box that
    it stores beside it.
    """
    bm, bn, bk = (batch.column(x).astype(np.int64) for x in ("block_m", "block_n", "block_k"))
    unroll = np.maximum(batch.column("unroll"), 1).astype(np.int64)
    turns = _steps(batch) // unroll  # a loop unrolled into one turn is none
    flat = batch.column("flatten") == 1
    looped = (turns > 1) | ((batch.fact("persistent") == 1) & ((turns == 1) | flat))
    bodies = np.where(turns > 0, unroll, 1)  # each with tiles of its own
    looped &= (batch.column("specialize") != 1) | _specializes(op, batch)  # asked for in vain it leaves no pipeline
    stages = np.where(looped, batch.column("stages").astype(np.int64), 1)
    warps = batch.column("warps")
    left = op.operand(op.products[0].left)
    swapped = batch.fact("swapped") == 1
    tensor = left.dtype.bytes <= 2 or left.dtype.input_precision == "tf32"
    wgmma = (bm >= 64) & ((warps == 4) | (warps == 8)) & (tensor and target.capability == 90)
    copies = np.where(wgmma, stages, stages - 1)
    pipeline, single = np.zeros(len(batch), np.int64), np.zeros(len(batch), np.int64)
    pieced = _pieced(bn)
    for side, group, tile in (("a", "m", bm * bk), ("b", "n", bk * bn)):
        box = batch.fact(f"tma_{side}") == 1
        # operands of a second product on the side that it does not share come on top
        count = np.where(swapped, _sides(op, swapped=True)[side], _sides(op, swapped=False)[side])
        size = tile * left.dtype.bytes * count
        narrow = np.where(pieced, tile // 3, tile)  # of one operand, its narrowest piece
        copied = (batch.fact(f"align_{side}") >= 16) & (narrow * left.dtype.bytes >= 4 * 32 * warps)
        copied &= ~flat | ~_overhang(batch, group)
        k_major = batch.fact("trans_a") == 0 if side == "a" else batch.fact("trans_b") == 1
        copied &= (batch.fact("summed") == 0) & (k_major if left.dtype.bytes == 1 else True)
        pipeline += np.where(box, bodies, np.where(copied, np.where(flat, 1, bodies), 0)) * copies * size
        widest = np.where(pieced, tile // 3 * 2, tile) if side == "b" else tile
        single = np.maximum(single, np.where(box, widest * left.dtype.bytes, 0))
    stored = bm * bn // np.maximum(batch.column("subtile"), 1) * op.output.dtype.bytes
    pipeline += np.where((batch.fact("persistent") & batch.fact("tma_store")) == 1, stored, 0)
    return np.where(batch.fact("summed") == 1, 0, np.where(stages > 1, pipeline, single))


def why_invalid(op: Op, target: Target, batch: ScheduleBatch) -> Rejections:
    """The reason against each row, or code 0. Where several apply, the first of ``REASONS`` is told."""
    bm, bn, bk = (batch.column(x).astype(np.int64) for x in ("block_m", "block_n", "block_k"))
    warps = batch.column("warps").astype(np.int64)
    steps = _steps(batch)
    out_bytes = op.output.dtype.bytes
    subtile = np.maximum(batch.column("subtile"), 1)
    store = batch.fact("tma_store") == 1
    dot = batch.fact("summed") == 0
    accumulators = len(op.accumulators) * bm * bn
    maxnreg = batch.column("maxnreg")
    narrowest = np.where(_pieced(bn), bn // 3, bn)  # 192 = 128 + 64, 96 = 64 + 32
    checks = (
        shared_lower_bound(op, target, batch) > target.shared_per_block,
        dot & (accumulators > 255 * 32 * warps),
        batch.column("split_k") > steps,
        np.maximum(np.maximum(bm * bn, bm * bk), bk * bn) > 1 << 20,
        store & (np.where(batch.fact("turned_store") == 1, bm, narrowest // subtile) * out_bytes < 16),
        (batch.column("specialize") == 1) & ~_specializes(op, batch),
        (batch.fact("folded_k") == 1) & (batch.k_extents[batch.sketch_index] % bk != 0),
        dot & (maxnreg > 0) & (accumulators > (maxnreg - 24) * 32 * warps),
        ~dot & (batch.fact("channelwise") == 0) & (bm * bk * bn < 32 * warps),
        np.maximum(batch.column("box_h"), 1) * np.maximum(batch.column("box_w"), 1) > bn,
        _twice_cached(batch),
    )
    codes = np.zeros(len(batch), np.int16)
    for code, bad in reversed(list(enumerate(checks, 1))):
        codes[bad] = code
    return Rejections(codes)


def explain_invalid(op: Op, target: Target, schedule: Schedule) -> str | None:
    """The reason against one schedule, with the schedule's name, or ``None``."""
    code = int(why_invalid(op, target, ScheduleBatch.of((schedule.sketch,), [schedule])).codes[0])
    return f"{schedule.to_json()}: {REASONS[code]}" if code else None


def _pieced(widths: NDArray[Any]) -> NDArray[np.bool_]:
    """Which widths are no power of two: tiles of two accumulators, 64 + 32 or 128 + 64 columns."""
    pieced: NDArray[np.bool_] = widths & (widths - 1) != 0
    return pieced


def _specializes(op: Op, batch: ScheduleBatch) -> NDArray[np.bool_]:
    """Whether Triton 3.6 applies warp specialisation on sm_90, as compiled kernels show (others fail), and soundly.

    On an H200 it was seen to leave whole tiles unwritten with two accumulators (the proof found it), and with tiles of
    128 rows to hang, twice of twice.
    """
    boxes = (batch.fact("tma_a") == 1) & (batch.fact("tma_b") == 1) & (batch.fact("tma_store") == 0)
    boxes &= ~_pieced(batch.column("block_n")) & (len(op.accumulators) == 1 and not op.factors)
    plain = (batch.column("flatten") != 1) & (batch.column("subtile") <= 1) & (batch.column("unroll") == 1)
    sound: NDArray[np.bool_] = boxes & plain & (batch.column("warps") == 4) & (batch.column("block_m") == 64)
    return sound


def _twice_cached(batch: ScheduleBatch) -> NDArray[np.bool_]:
    """Whether a plain load has both cache options, which ptxas refuses.

    Copies of 4 bytes or more are asynchronous where the loop is pipelined, and take them.
    """
    found = np.zeros(len(batch), np.bool_)
    for side, evicted in (("b", 1), ("a", 2)):
        plain = (batch.fact(f"align_{side}") < 4) | (batch.column("stages") == 1)
        found |= (batch.column("evict") == evicted) & (batch.fact(f"tma_{side}") == 0) & plain
    twice: NDArray[np.bool_] = found & (batch.column("cache") == 1)
    return twice


def _sides(op: Op, *, swapped: bool) -> dict[str, int]:
    """Operands that a reduction step loads as rows (``"a"``) and as columns (``"b"``)."""
    count = {"a": len({p.left for p in op.products}), "b": len({p.right for p in op.products})}
    return {"a": count["b"], "b": count["a"]} if swapped else count


def _overhang(batch: ScheduleBatch, group: str) -> NDArray[np.bool_]:
    """Whether tiles do not divide the rows (``"m"``) or columns (``"n"``); so at a dynamic extent."""
    views = {id(s.view): s.view for s in batch.sketches}  # most often one, shared by all sketches
    known = {at: 1 if view.is_dynamic(group) else view.extent(group) for at, view in views.items()}
    extents = np.asarray([known[id(s.view)] for s in batch.sketches], np.int64)
    overhang: NDArray[np.bool_] = extents[batch.sketch_index] % batch.column(f"block_{group}") != 0
    return overhang | (batch.fact("ragged") == 1) if group == "m" else overhang


def _steps(batch: ScheduleBatch) -> NDArray[np.int64]:
    """Steps of the whole reduction loop."""
    return -(-batch.k_extents[batch.sketch_index] // batch.column("block_k"))
