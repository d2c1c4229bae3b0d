"""The node types of a sketch. Each knows its knobs and the facts that features read; none knows another node."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from autosched.sketches.knobs import Knob
from autosched.sketches.op import Op
from autosched.sketches.view import MatrixView

MAX_TILE = 256
SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


def _tile_values(extent: int, largest: int = MAX_TILE) -> tuple[int, ...]:
    """Powers of two from 16 to the first that holds ``extent``, at most ``largest``."""
    top = min(largest, max(16, 1 << ceil(log2(max(extent, 1)))))
    return tuple(v for v in (16, 32, 64, 128, 256, 512) if v <= top)


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
        return {"persistent": 0, "split": 0}


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
        """Group order, and whether the tile loop is flattened into the reduction loop."""
        return (*Work.knobs(self, op, view), Knob("flatten", (0, 1)))

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"persistent": 1, "split": 0}


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
        return {"persistent": 0, "split": 1}


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


@dataclass(frozen=True, slots=True)
class PointerLoad(Load):
    """A gather through pointers, masked only where tiles do not divide extents."""

    tag = "ptr"


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
class DotCombine:
    """``tl.dot`` into one accumulator a product."""

    tag = "dot"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """Tile, warps and pipeline depth."""
        longest = 512 // op.operand(op.products[0].left).dtype.bytes
        return (
            Knob("block_m", _tile_values(view.extent("m"))),
            Knob("block_n", _tile_values(view.extent("n"))),
            Knob("block_k", _tile_values(view.extent("k"), longest)),
            Knob("warps", (1, 2, 4, 8)),
            Knob("stages", (1, 2, 3, 4, 5, 6, 7)),
        )


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
    """Store of a box through a host tensor descriptor, clipped to the tensor."""

    tag = "tma"
    tma = 1


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
        return {"tma_store": self.store.tma, "subtiled": 0, "workspace": 0}


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
        return {"tma_store": self.store.tma, "subtiled": 1, "workspace": 0}


@dataclass(frozen=True, slots=True)
class WorkspaceFinish:
    """Partial sums in fp32 go to a workspace; a second kernel adds them in a fixed order and runs the epilogue."""

    tag = "workspace"

    def knobs(self, op: Op, view: MatrixView) -> tuple[Knob, ...]:
        """None."""
        return ()

    def facts(self) -> dict[str, int]:
        """Structure as numbers."""
        return {"tma_store": 0, "subtiled": 0, "workspace": 1}


Finish = DirectFinish | SubtiledFinish | WorkspaceFinish


@dataclass(frozen=True, slots=True)
class Launch:
    """Host side: descriptors, workspace, grid, and the kernels in order."""

    tag = "launch"
