"""The node types of a sketch. Each knows its knobs and the facts that features read; none knows another node."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import ClassVar

from autosched.sketches.box import ImageMap
from autosched.sketches.knobs import Knob
from autosched.sketches.op import Op
from autosched.sketches.view import MatrixView

MAX_TILE = 256
#: Tile widths that are no power of two: 64 + 32 and 128 + 64 columns, an accumulator each.
PIECED = (96, 192)
#: Steps of a loop without a dot that may be unrolled as a whole: the taps of a 3 x 3 x 3 kernel.
LONGEST_UNROLLED = 27
#: Stands where a node has to be given a map.
NOWHERE = ImageMap((), (), "")
SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


def _tile_values(extent: int, largest: int = MAX_TILE, smallest: int = 16) -> tuple[int, ...]:
    """Powers of two from ``smallest`` to the first that holds ``extent``, at most ``largest``."""
    top = min(largest, max(smallest, 1 << ceil(log2(max(extent, 1)))))
    return tuple(v for v in (16, 32, 64, 128, 256, 512) if smallest <= v <= top)


@dataclass(frozen=True, slots=True)
class Work:
    """Yields the tiles of the output, and for each the range of the reduction."""

    tag = "work"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Group order: how many tile rows are visited together."""
        rows = ceil(view.extent("m") / 16)
        return (Knob("group_m", tuple(v for v in (1, 2, 4, 8, 16, 32) if v == 1 or v <= rows)),)

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"persistent": 0, "split": 0, "stream_k": 0, "ragged": 0}


@dataclass(frozen=True, slots=True)
class GridWork(Work):
    """One program a tile."""

    tag = "grid"


@dataclass(frozen=True, slots=True)
class PersistentWork(Work):
    """A fixed number of programs, which loop over tiles.

    Attributes:
        programs: How many; one an SM.
    """

    programs: int = 1

    tag = "persistent"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Group order, whether the tile loop is flattened into the reduction loop, whether its warps specialise."""
        return (*Work.knobs(self, op, view), Knob("flatten", (0, 1)), Knob("specialize", (0, 1)))

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"persistent": 1, "split": 0, "stream_k": 0, "ragged": 0}


@dataclass(frozen=True, slots=True)
class SplitWork(Work):
    """One program a tile and part of the reduction; parts hold whole steps of the loop and differ by one at most."""

    tag = "split"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Group order, and the number of parts."""
        most = max(2, view.extent("k") // 32)
        return (*Work.knobs(self, op, view), Knob("split_k", tuple(v for v in SPLITS if v <= most)))

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"persistent": 0, "split": 1, "stream_k": 0, "ragged": 0}


@dataclass(frozen=True, slots=True)
class StreamWork(Work):
    """A fixed number of programs, which take whole tiles in turn and deal out the steps of the last ones evenly.

    The last tiles, between one and two for each program, are cut where a program's even share of their steps ends, so
    that all programs end together ("stream-K" with two tiles a program: Osama et al., PPoPP 2023).

    Attributes:
        programs: How many; one an SM.
    """

    programs: int = 1

    tag = "stream"

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"persistent": 1, "split": 0, "stream_k": 1, "ragged": 0}


@dataclass(frozen=True, slots=True)
class RaggedWork(Work):
    """One program a tile of each group's own rows; programs beyond the tiles that there turn out to be do nothing.

    Attributes:
        offsets: The operand that holds the end of each group's rows.
    """

    offsets: str

    tag = "ragged"

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"persistent": 0, "split": 0, "stream_k": 0, "ragged": 1}


@dataclass(frozen=True, slots=True)
class RaggedPersistentWork(Work):
    """A fixed number of programs, which loop over the tiles of each group's own rows.

    Attributes:
        offsets: The operand that holds the end of each group's rows.
        programs: How many; one an SM.
    """

    offsets: str
    programs: int = 1

    tag = "ragged_persistent"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Group order, and whether the tile loop is flattened into the reduction loop."""
        return (*Work.knobs(self, op, view), Knob("flatten", (0, 1)))

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"persistent": 1, "split": 0, "stream_k": 0, "ragged": 1}


@dataclass(frozen=True, slots=True)
class Load:
    """Brings one operand's tile of each reduction step.

    Attributes:
        operand: Name of the tensor.
        rows: Group of the tile's first dimension (``m`` or ``k``).
        columns: Group of its second (``k`` or ``n``).
    """

    operand: str
    rows: str
    columns: str

    tag = "load"
    tma = 0
    copied = 0
    #: Axes along which a tile of the fixed group is a box, outermost first; none where it is a run of indices.
    boxed: ClassVar[tuple[str, ...]] = ()

    @property
    def fixed(self) -> str:
        """Group of the tile that the reduction loop does not move along."""
        return self.rows if self.columns == "k" else self.columns

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True)
class PointerLoad(Load):
    """A gather through pointers, masked only where tiles do not divide extents."""

    tag = "ptr"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """What the caches do with what is gathered."""
        return (Knob("evict", (0, 1, 2)), Knob("cache", (0, 1)))


@dataclass(frozen=True, slots=True)
class TmaLoad(Load):
    """A box through a host tensor descriptor; reads outside the tensor are zero.

    Attributes:
        transposed: Whether the tensor is stored with ``columns`` outermost, so that the box is transposed after it.
    """

    transposed: bool = False

    tag = "tma"
    tma = 1


@dataclass(frozen=True, slots=True)
class CopiedLoad(TmaLoad):
    """A box of a copy that a kernel before makes, with the reduction innermost and rows padded to whole cache lines.

    For operands that no descriptor describes, whose boxes would straddle cache lines, or whose type has a dot only for
    tiles with the reduction innermost. The copy is part of every launch and of its measurement.
    """

    tag = "copy"
    copied = 1

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Whether each kernel is launched before the one ahead of it has ended (programmatic dependent launch)."""
        return (Knob("dependent", (0, 1)),)


@dataclass(frozen=True, slots=True)
class ImageLoad(TmaLoad):
    """A box of an image: neighbouring rows and columns of some images, shifted by the taps of the reduction.

    What lies outside the image is zero, so that padding takes no masks. It stands on the right of the dot alone: on the
    left a box of several dimensions would reach the tensor cores through registers.

    Attributes:
        image: How boxes lie in the tensor.
    """

    image: ImageMap = NOWHERE

    tag = "image"

    @property
    def boxed(self) -> tuple[str, ...]:  # type: ignore[override]
        """The map's."""
        return self.image.boxed

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Sides of the box; tiles are powers of two, and a step stays within the channels of one tap."""
        *_, height, width = (1, *(op.extents[x] for x in self.image.boxed))
        size, channels = op.operand(self.operand).dtype.bytes, op.extents[self.image.channel]
        depths = _tile_values(view.extent("k"), 512 // size, 32 if size == 1 else 16)
        sides = {"box_h": height if len(self.image.boxed) > 2 else 1, "box_w": width}
        boxes = (Knob(name, _sides(extent)) for name, extent in sides.items() if extent > 1 or name == "box_w")
        return (
            Knob("block_n", _tile_values(view.extent("n"))),
            Knob("block_k", tuple(v for v in depths if channels % v == 0)),
            *boxes,
        )


def _sides(extent: int) -> tuple[int, ...]:
    """Powers of two up to the first that holds ``extent``, which is as long as a box can be."""
    return tuple(1 << i for i in range(MAX_TILE.bit_length()) if 1 << i < 2 * extent)


@dataclass(frozen=True, slots=True)
class ChannelLoad(Load):
    """A gather of one step of the reduction: of rows and columns, or of the columns alone."""

    tag = "ptr"


@dataclass(frozen=True, slots=True)
class DotCombine:
    """``tl.dot`` into one accumulator a product and piece of the tile's columns."""

    tag = "dot"
    summed = 0

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Tile, warps and pipeline depth, unrolling, registers."""
        size = op.operand(op.products[0].left).dtype.bytes
        columns = _tile_values(view.extent("n"))
        pieced = tuple(v for v in PIECED if v < columns[-1])
        return (
            Knob("block_m", _tile_values(view.extent("m"))),
            Knob("block_n", tuple(sorted(columns + pieced))),
            Knob("block_k", _tile_values(view.extent("k"), 512 // size, 32 if size == 1 else 16)),
            Knob("warps", (1, 2, 4, 8)),
            Knob("stages", (1, 2, 3, 4, 5, 6, 7)),
            Knob("unroll", (1, 2, 4)),
            Knob("maxnreg", (0, 128, 168, 232)),
        )


@dataclass(frozen=True, slots=True)
class ScaledCombine(DotCombine):
    """``tl.dot`` from zero in each step, added to the accumulator times the products' factors.

    Attributes:
        run: Length of the reduction over which factors stay the same. A step is no longer, and divides it.
    """

    run: int

    tag = "scaled"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Those of a dot, with steps that divide the run."""
        return tuple(
            Knob(k.name, tuple(v for v in k.values if self.run % v == 0)) if k.name == "block_k" else k
            for k in DotCombine.knobs(self, op, view)
        )


@dataclass(frozen=True, slots=True)
class SumCombine:
    """Multiply and add elementwise, summed over the reduction at the end: a row of the output without tensor cores."""

    tag = "sum"
    summed = 1

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """A tile of one row, its columns, steps of the reduction; warps, pipeline depth, unrolling."""
        return (
            Knob("block_m", (1,)),
            Knob("block_n", _tile_values(view.extent("n"))),
            Knob("block_k", _tile_values(view.extent("k"))),
            Knob("warps", (1, 2, 4, 8)),
            Knob("stages", (1, 2, 3, 4, 5)),
            Knob("unroll", (1, 2, 4)),
        )


@dataclass(frozen=True, slots=True)
class ChannelCombine:
    """Multiply and add elementwise, one step of the reduction after the other: every column by itself."""

    tag = "channel"
    summed = 1

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """A tile of rows and columns, a single step; warps, pipeline depth, unrolling, of short loops as a whole."""
        steps = view.extent("k")
        whole = (steps,) if steps <= LONGEST_UNROLLED else ()
        return (
            Knob("block_m", (1, 2, 4, 8, *_tile_values(view.extent("m")))),
            Knob("block_n", _tile_values(view.extent("n"), 2 * MAX_TILE if view.in_runs else MAX_TILE)),
            Knob("block_k", (1,)),
            Knob("warps", (1, 2, 4, 8)),
            Knob("stages", (1, 2, 3)),
            Knob("unroll", tuple(sorted({1, 2, 4, *whole}))),
        )


Combine = DotCombine | SumCombine | ChannelCombine


@dataclass(frozen=True, slots=True)
class ChainEpilogue:
    """The op's epilogue chain on each piece of the accumulator, in fp32."""

    tag = "chain"


@dataclass(frozen=True, slots=True)
class PointerStore:
    """Masked store through pointers."""

    tag = "ptr"
    tma = 0


@dataclass(frozen=True, slots=True)
class TmaStore:
    """Store of a box through a host tensor descriptor, clipped to the tensor.

    Attributes:
        transposed: Whether the output is stored with the columns' group outermost.
    """

    transposed: bool = False

    tag = "tma"
    tma = 1


@dataclass(frozen=True, slots=True)
class ImageStore(TmaStore):
    """Store of a box of an image, clipped to it.

    Attributes:
        image: How boxes lie in the output.
    """

    image: ImageMap = NOWHERE


Store = PointerStore | TmaStore


@dataclass(frozen=True, slots=True)
class DirectFinish:
    """Epilogue and store of the whole tile."""

    store: Store

    tag = "direct"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """None."""
        return ()

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"tma_store": self.store.tma, "subtiled": 0, "workspace": 0, "atomic": 0}


@dataclass(frozen=True, slots=True)
class SubtiledFinish:
    """Epilogue and store of column pieces of the tile, one after the other."""

    store: Store

    tag = "subtiled"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Number of pieces."""
        return (Knob("subtile", (1, 2, 4)),)

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"tma_store": self.store.tma, "subtiled": 1, "workspace": 0, "atomic": 0}


@dataclass(frozen=True, slots=True)
class WorkspaceFinish:
    """Partial sums in fp32 go to a workspace; a second kernel adds them in a fixed order and runs the epilogue."""

    tag = "workspace"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Whether the second kernel is launched before the first has ended (programmatic dependent launch)."""
        return (Knob("dependent", (0, 1)),)

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"tma_store": 0, "subtiled": 0, "workspace": 1, "atomic": 0}


@dataclass(frozen=True, slots=True)
class AtomicFinish:
    """Partial sums are added in fp32 to a tile of a zeroed workspace; who adds the last one runs the epilogue.

    It leaves the workspace zero. The order of summation changes from launch to launch.
    """

    tag = "atomic"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """None."""
        return ()

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"tma_store": 0, "subtiled": 0, "workspace": 0, "atomic": 1}


Finish = DirectFinish | SubtiledFinish | WorkspaceFinish | AtomicFinish


@dataclass(frozen=True, slots=True)
class Launch:
    """Host side: descriptors, workspace, grid, and the kernels in order."""

    tag = "launch"
