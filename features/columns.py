"""The quantities that several feature families share, one float32 column of a mixed batch each.

Nothing here is a feature by itself; the families (``tiles``, ``memory``, ``execution``) make features of them. What
depends on the sketch alone is worked out once (``Constants``) and gathered by the batch's sketch column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.features.roofline import roofline_us
from autosched.sketches.knobs import KNOB_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autosched.sketches.op import Op
    from autosched.sketches.schedule import ScheduleBatch
    from autosched.sketches.sketch import Sketch
    from autosched.sketches.target import Target

Column = NDArray[np.float32]

#: Registers of a thread beside its accumulator (compiled for sm_90: a 128x128 tile with 4 warps holds 128 accumulator
#: registers and takes 222, 128x256 with 8 warps takes 206 to 211).
REGISTERS_BESIDE_ACCUMULATOR = 80
#: Registers that a thread can address, and CTAs that an SM can hold.
REGISTERS_PER_THREAD = 255
BLOCKS_PER_SM = 32
#: Share of the peak that ``mma.sync`` reaches on sm_90, where only ``wgmma`` reaches all of it (an estimate).
MMA_SYNC_RATE = 0.62
#: Share of the peak that ``wgmma`` reaches where an operand must be turned first (an estimate): of elements other than
#: of two bytes it reads only tiles whose K axis is contiguous (PTX ISA, wgmma), so others pass through registers.
TURNED_RATE = 0.4
#: Time between asking for a tile in DRAM and having it, in microseconds (an estimate).
LOAD_LATENCY_US = 0.6

#: What a sketch without the knob does: one part, one piece, one row of tiles, no flattening.
_WITHOUT = np.array([[0 if name == "flatten" else 1] for name in KNOB_NAMES], np.int32)
_FACTS = ("persistent", "tma_store", "workspace", "batch", "trans_a", "trans_b")
_SIZES = ("m", "n", "k")


@dataclass(frozen=True)
class Constants:
    """What depends on op, target and sketch alone.

    Attributes:
        table: Float32 ``[len(_SIZES) + len(_FACTS), sketches]``.
        element: Bytes of an element of the product's operands.
        output: Bytes of an element of the output.
        tensor_cores: Whether the product's dtype runs on tensor cores (all but full-precision fp32).
        flops: Of the whole op.
        compulsory: Bytes read once and written once.
        roofline: Microseconds, see ``roofline_us``.
        peak: Peak rate in flop/us.
        target: The device.
        extra_bytes: Bytes of the epilogue's operands.
    """

    table: NDArray[np.float32]
    element: int
    output: int
    tensor_cores: bool
    flops: float
    compulsory: float
    roofline: float
    peak: float
    target: Target
    extra_bytes: float

    @classmethod
    def of(cls, op: Op, target: Target, sketches: Sequence[Sketch]) -> Constants:
        """Work them out for ``sketches`` of ``op`` on ``target``."""
        rows = []
        for sketch in sketches:
            facts = sketch.facts()
            rows.append([*(sketch.view.extent(x) for x in _SIZES), *(facts[x] for x in _FACTS)])
        left = op.operand(op.products[0].left)
        right = op.operand(op.products[0].right)
        read, written = op.compulsory_bytes
        operands = sum(float(np.prod(o.shape, dtype=np.float64)) * o.dtype.bytes for o in (left, right))
        return cls(
            table=np.asarray(rows, np.float32).reshape(len(rows), -1).T.copy(),
            element=left.dtype.bytes,
            output=op.output.dtype.bytes,
            tensor_cores=left.dtype.input_precision != "ieee",
            flops=float(op.flops),
            compulsory=float(read + written),
            roofline=roofline_us(op, target),
            peak=target.peak_flops(left.dtype.name) * 1e-6,
            target=target,
            extra_bytes=read - operands,
        )


class Columns:
    """Shared columns of one batch; every attribute is float32 ``[n]``.

    Attributes:
        m, n, k, batch: Extents of the matrix view and the number of matrices.
        persistent, tma_store, workspace: Facts of the row's sketch, 0 or 1.
        block_m, block_n, block_k, warps, stages, group_m, split_k, flatten, subtile: Knobs; an absent one is
            1, or 0 for ``flatten``.
        tiles_m, tiles_n: Output tiles along M and N (the last may be partial).
        programs: Work items: output tiles of all matrices times splits.
        k_steps: Steps of the reduction loop of one work item, at least 1.
        k_padded: Reduction length that is computed, over all splits.
        accumulators: Accumulator registers of a thread.
        wgmma, mma: Whether the dot is ``wgmma`` or ``mma.sync``.
        turned: Whether it is ``wgmma`` and an operand has to be turned for it.
        stage_bytes: Shared memory of one stage of both operands.
        shared: Shared memory of a CTA, a lower bound in bytes.
        registers: Registers of a thread, an estimate.
        blocks: CTAs that an SM holds at once.
        blocks_by_shared: The same as far as shared memory limits it.
    """

    def __init__(self, constants: Constants, batch: ScheduleBatch) -> None:
        c = self.constants = constants
        self.index = batch.values[:, 0]
        knobs = batch.values[:, 1:].T
        if knobs.min(initial=0) < 0:
            knobs = np.where(knobs < 0, _WITHOUT, knobs)
        column: dict[str, Column] = dict(zip(KNOB_NAMES, knobs.astype(np.float32), strict=True))
        self.block_m, self.block_n, self.block_k = column["block_m"], column["block_n"], column["block_k"]
        self.warps, self.stages, self.group_m = column["warps"], column["stages"], column["group_m"]
        self.split_k, self.flatten, self.subtile = column["split_k"], column["flatten"], column["subtile"]
        constant = c.table.take(self.index, axis=1)
        self.m, self.n, self.k, self.persistent, self.tma_store, self.workspace, self.batch, trans_a, trans_b = constant
        self._turns: Column = np.maximum(trans_a, np.float32(1) - trans_b)
        self._tile()
        self._resources()

    def _tile(self) -> None:
        self.area: Column = self.block_m * self.block_n
        self.edges: Column = self.block_m + self.block_n
        self.tiles_m: Column = np.ceil(self.m / self.block_m)
        self.tiles_n: Column = np.ceil(self.n / self.block_n)
        self.programs: Column = self.tiles_m * self.tiles_n * self.batch * self.split_k
        self.k_steps: Column = np.ceil(np.ceil(self.k / self.block_k) / self.split_k)
        self.k_padded: Column = self.k_steps * self.split_k * self.block_k

    def _resources(self) -> None:
        c, target = self.constants, self.constants.target
        threads = self.warps * np.float32(32)
        self.accumulators: Column = self.area / threads
        if c.tensor_cores and target.capability == 90:
            warpgroups = (self.warps == 4) | (self.warps == 8) | (self.warps == 16)
            self.wgmma: Column = ((self.block_m >= 64) & warpgroups).astype(np.float32)
            self.mma: Column = np.float32(1) - self.wgmma
        else:
            self.wgmma = np.zeros_like(threads)
            self.mma = np.full_like(threads, c.tensor_cores)
        self.turned: Column = self.wgmma * self._turns if c.element != 2 else np.zeros_like(threads)
        self.stage_bytes: Column = self.edges * self.block_k * np.float32(c.element)
        held = np.maximum(self.stages - (np.float32(1) - self.wgmma), np.float32(1))
        # A TMA store of a persistent kernel keeps a buffer of its own; otherwise the epilogue reuses the stages.
        buffer = self.area * np.float32(c.output) * self.tma_store * self.persistent / self.subtile
        self.shared: Column = self.stage_bytes * held + buffer
        self.registers: Column = np.minimum(
            self.accumulators + np.float32(REGISTERS_BESIDE_ACCUMULATOR), np.float32(REGISTERS_PER_THREAD)
        )
        self.blocks_by_shared: Column = np.floor(np.float32(target.shared_per_sm) / (self.shared + np.float32(1024)))
        by_registers = np.floor(np.float32(target.registers_per_sm) / (threads * self.registers))
        by_threads = np.floor(np.float32(target.threads_per_sm) / threads)
        blocks = np.minimum(np.minimum(self.blocks_by_shared, by_registers), by_threads)
        # A persistent kernel starts one program an SM.
        most = np.where(self.persistent > 0, np.float32(1), np.float32(BLOCKS_PER_SM))
        self.blocks: Column = np.clip(blocks, np.float32(1), most)
