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
from autosched.features.workload import distinct, extents, prepared_bytes, product_bytes
from autosched.sketches.knobs import KNOB_NAMES, KNOBS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autosched.sketches.op import Op
    from autosched.sketches.schedule import ScheduleBatch
    from autosched.sketches.sketch import Sketch
    from autosched.sketches.target import Target

Column = NDArray[np.float32]

#: Registers of a thread beside its accumulator (compiled for sm_90: a 128x128 tile with 4 warps holds 128 accumulator
#: registers and takes 222, 128x256 with 8 warps takes 206 to 211).
REGISTERS_BESIDE_ACCUMULATOR = 80
#: The same where columns have rows of their own, and registers for each element of a thread: its sum and what is loaded
#: (compiled for sm_90: 8 elements take 54 to 96, 64 take 168 to 255).
REGISTERS_BESIDE_CHANNELS = 60
REGISTERS_AN_ELEMENT = 2
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

#: What a sketch without the knob does: one part, one piece, one row of tiles, and none of the switches.
_WITHOUT = np.array([[1 if info.log2 else 0] for info in KNOBS.values()], np.int32)
_IMAGE = ("image_outer", "image_n", "image_h", "image_w")
_FACTS = (
    "persistent",
    "tma_store",
    "workspace",
    "stream_k",
    "atomic",
    "copied_a",
    "copied_b",
    "summed",
    "channelwise",
    *_IMAGE,
)
_OPERANDS = ("operands_a", "operands_b", "turns", "narrow_a", "narrow_b", "distinct_a", "distinct_b", "prepared")
_ROWS = ("m", "n", "k", "batch", *_OPERANDS, *_FACTS)
#: Bytes that one thread loads at once where addresses are aligned, and the fewest that an asynchronous copy takes.
WIDEST, ASYNC = 16, 4


@dataclass(frozen=True)
class Constants:
    """What depends on op, target and sketch alone.

    Attributes:
        table: Float32 ``[len(_ROWS), sketches]``.
        element: Bytes of an element of the product's operands.
        output: Bytes of an element of the output.
        tensor_cores: Whether the product's dtype runs on tensor cores (all but full-precision fp32).
        flops: Of the whole op.
        compulsory: Bytes read once and written once.
        roofline: Microseconds, see ``roofline_us``.
        peak: Peak rate in flop/us.
        fma: Rate of multiplying and adding in fp32 without tensor cores, over the peak.
        target: The device.
        extra_bytes: Bytes of the epilogue's operands.
        products: Products of a step.
        sums: Accumulators of the products.
        held: Sums that a thread holds at once: these, and a step's own where factors multiply it.
    """

    table: NDArray[np.float32]
    element: int
    output: int
    tensor_cores: bool
    flops: float
    compulsory: float
    roofline: float
    peak: float
    fma: float
    target: Target
    extra_bytes: float
    products: int
    sums: int
    held: int

    @classmethod
    def of(cls, op: Op, target: Target, sketches: Sequence[Sketch]) -> Constants:
        """Work them out for ``sketches`` of ``op`` on ``target``."""
        sides = (len({p.left for p in op.products}), len({p.right for p in op.products}))
        rows = []
        for sketch in sketches:
            facts = sketch.facts()
            turns = max(facts["trans_a"], 1 - facts["trans_b"])
            operands = sides[::-1] if facts["swapped"] else sides
            narrow = [_narrow(facts, side) for side in "ab"]
            sided = (op.products[0].left, op.products[0].right)[:: -1 if facts["swapped"] else 1]
            shares = [distinct(op, sketch, name) for name in sided]
            of_operands = (*operands, turns, *narrow, *shares, prepared_bytes(op, sketch))
            rows.append([*extents(op, sketch), *of_operands, *(facts[x] for x in _FACTS)])
        left = op.operand(op.products[0].left)
        read, written = op.compulsory_bytes
        return cls(
            table=np.asarray(rows, np.float32).reshape(len(rows), -1).T.copy(),
            element=left.dtype.bytes,
            output=op.output.dtype.bytes,
            tensor_cores=left.dtype.input_precision != "ieee",
            flops=float(op.flops),
            compulsory=float(read + written),
            roofline=roofline_us(op, target),
            peak=target.peak_flops(left.dtype.name) * 1e-6,
            fma=target.peak_flops("fp32") / target.peak_flops(left.dtype.name),
            target=target,
            extra_bytes=float(read - product_bytes(op)),
            products=len(op.products),
            sums=len(op.accumulators),
            held=len(op.accumulators) + bool(op.factors),
        )


class Columns:
    """Shared columns of one batch; every attribute is float32 ``[n]``.

    Attributes:
        m, n, k, batch: Extents of the matrix view and the number of matrices.
        operands_a, operands_b: Operands that give rows and columns of the tile (a gated pair has two on one side).
        persistent, tma_store, workspace, stream_k, atomic, copied_a, copied_b, summed, channelwise: Facts of the row's
            sketch, 0 or 1.
        block_m, block_n, block_k, warps, stages, group_m, split_k, flatten, subtile, specialize, dependent, unroll,
            maxnreg, evict, cache, box_h, box_w: Knobs; an absent one is 1, or 0 for a switch.
        image_outer, image_n, image_h, image_w: Extents of the image that boxes are taken from, 0 without any.
        tiles_m, tiles_n: Output tiles along M and N (the last may be partial).
        programs: Work items: output tiles of all matrices times splits.
        narrow_a, narrow_b: Loads that a gather takes for each byte of the operand beyond those of ``WIDEST`` bytes
            each, since its rows are aligned to fewer; 0 for boxes.
        distinct_a, distinct_b: Elements of the operand over those that its tiles index: below 1 where several indices
            read one element.
        prepared: Bytes read and written for copies that are padded before, 0 without any.
        rounds: Work items that the busiest SM does; whole steps of them where steps are dealt out evenly.
        rows, columns: Elements of M and N that the operands of a step have together.
        k_steps: Steps of the reduction loop of one work item, at least 1.
        k_padded: Reduction length that is computed, over all splits.
        accumulators: Accumulator registers of a thread. Without a dot each thread sums elements of a step apart.
        wgmma, mma: Whether the dot is ``wgmma`` or ``mma.sync``.
        turned: Whether it is ``wgmma`` and an operand has to be turned for it.
        stage_bytes: Shared memory of one stage of all operands.
        shared: Shared memory of a CTA, a lower bound in bytes.
        registers: Registers of a thread, an estimate.
        register_limit: Registers that a thread may have.
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
        self.specialize, self.dependent = column["specialize"], column["dependent"]
        self.unroll, self.maxnreg = column["unroll"], column["maxnreg"]
        self.evict, self.cache = column["evict"], column["cache"]
        self.box_h, self.box_w = column["box_h"], column["box_w"]
        constant: dict[str, Column] = dict(zip(_ROWS, c.table.take(self.index, axis=1), strict=True))
        self.m, self.n, self.k, self.batch = constant["m"], constant["n"], constant["k"], constant["batch"]
        self.operands_a, self.operands_b = constant["operands_a"], constant["operands_b"]
        self.persistent, self.stream_k, self.summed = constant["persistent"], constant["stream_k"], constant["summed"]
        # where every column has rows of its own, a tile has rows for each of them
        self.channelwise = constant["channelwise"]
        self.operands_a = np.where(self.channelwise > 0, self.block_n, self.operands_a)
        self.tma_store, self.workspace, self.atomic = constant["tma_store"], constant["workspace"], constant["atomic"]
        self.copied_a, self.copied_b, self._turns = constant["copied_a"], constant["copied_b"], constant["turns"]
        self.narrow_a, self.narrow_b = constant["narrow_a"], constant["narrow_b"]
        self.distinct_a, self.distinct_b = constant["distinct_a"], constant["distinct_b"]
        self.prepared = constant["prepared"]
        self.image_outer, self.image_n = constant["image_outer"], constant["image_n"]
        self.image_h, self.image_w = constant["image_h"], constant["image_w"]
        self._tile()
        self._resources()

    def _tile(self) -> None:
        self.area: Column = self.block_m * self.block_n
        self.rows: Column = self.block_m * self.operands_a
        self.columns: Column = self.block_n * self.operands_b
        self.edges: Column = self.rows + self.columns
        self.tiles_m: Column = np.ceil(self.m / self.block_m)
        self.tiles_n: Column = np.where(self.image_w > 0, self._boxes(), np.ceil(self.n / self.block_n))
        self.programs: Column = self.tiles_m * self.tiles_n * self.batch * self.split_k
        self.k_steps: Column = np.ceil(np.ceil(self.k / self.block_k) / self.split_k)
        sms = np.float32(self.constants.target.sms)
        even = np.ceil(self.programs * self.k_steps / sms) / self.k_steps
        self.rounds: Column = np.where(self.stream_k > 0, even, np.ceil(self.programs / sms))
        self.k_padded: Column = self.k_steps * self.split_k * self.block_k

    def _boxes(self) -> Column:
        """Image boxes along N: those that overhang rows, columns or images count."""
        images = np.maximum(self.block_n / (self.box_h * self.box_w), np.float32(1))
        sides = (self.image_n / images, self.image_h / self.box_h, self.image_w / self.box_w)
        found: Column = self.image_outer * np.ceil(sides[0]) * np.ceil(sides[1]) * np.ceil(sides[2])
        return found

    def _resources(self) -> None:
        c, target = self.constants, self.constants.target
        threads = self.warps * np.float32(32)
        sums = np.where(self.summed > 0, self.block_m * self.block_k * self.block_n, self.area * np.float32(c.held))
        self.accumulators: Column = sums / threads
        if c.tensor_cores and target.capability == 90:
            warpgroups = (self.warps == 4) | (self.warps == 8) | (self.warps == 16)
            self.wgmma: Column = ((self.block_m >= 64) & warpgroups).astype(np.float32)
            self.mma: Column = np.float32(1) - self.wgmma - self.summed
        else:
            self.wgmma = np.zeros_like(threads)
            self.mma = np.full_like(threads, c.tensor_cores) * (np.float32(1) - self.summed)
        self.turned: Column = self.wgmma * self._turns if c.element != 2 else np.zeros_like(threads)
        self.stage_bytes: Column = self.edges * self.block_k * np.float32(c.element)
        held = np.maximum(self.stages - (np.float32(1) - self.wgmma), np.float32(1))
        # A TMA store of a persistent kernel keeps a buffer of its own; otherwise the epilogue reuses the stages.
        buffer = self.area * np.float32(c.output) * self.tma_store * self.persistent / self.subtile
        self.shared: Column = self.stage_bytes * held + buffer
        self.register_limit: Column = np.where(self.maxnreg > 0, self.maxnreg, np.float32(REGISTERS_PER_THREAD))
        wanted = self.accumulators + np.float32(REGISTERS_BESIDE_ACCUMULATOR)
        apart = np.float32(REGISTERS_AN_ELEMENT) * self.accumulators + np.float32(REGISTERS_BESIDE_CHANNELS)
        wanted = np.where(self.channelwise > 0, apart, wanted)
        self.registers: Column = np.minimum(wanted, self.register_limit)
        self.blocks_by_shared: Column = np.floor(np.float32(target.shared_per_sm) / (self.shared + np.float32(1024)))
        by_registers = np.floor(np.float32(target.registers_per_sm) / (threads * self.registers))
        by_threads = np.floor(np.float32(target.threads_per_sm) / threads)
        blocks = np.minimum(np.minimum(self.blocks_by_shared, by_registers), by_threads)
        # A persistent kernel starts one program an SM.
        most = np.where(self.persistent > 0, np.float32(1), np.float32(BLOCKS_PER_SM))
        self.blocks: Column = np.clip(blocks, np.float32(1), most)


def _narrow(facts: Mapping[str, int], side: str) -> float:
    """Loads for each byte of one side's operands beyond those of ``WIDEST`` bytes; 0 for boxes."""
    return 0.0 if facts[f"tma_{side}"] else 1 / facts[f"align_{side}"] - 1 / WIDEST
