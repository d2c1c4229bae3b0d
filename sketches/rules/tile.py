"""Multi-level tile and group order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.sketches.nodes import (
    ChainEpilogue,
    ChannelCombine,
    ChannelLoad,
    DirectFinish,
    DotCombine,
    GridWork,
    Launch,
    PointerLoad,
    PointerStore,
    ScaledCombine,
    SplitWork,
    SumCombine,
    Work,
)
from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target
from autosched.sketches.view import MatrixView, run_length

#: Rows up to which a program a row is derived; each reads the columns' operand again.
FEW_ROWS = 4


class TileRule:
    """From a matrix view to the plainest tree: a tile a program, a pipelined reduction loop, grouped program order."""

    name = "multi-level tile"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on a view whose rows all read the same matrix of a batch; operands of all products are loaded once."""
        if not isinstance(state, MatrixView) or op.ragged is not None or state.channelwise:
            return
        plain = plainest(op, state, GridWork())
        scaled = ", the sum of each step times its factors" if op.factors else ""
        yield plain, f"block_m x block_n tiles, a loop over block_k{scaled}, tile rows grouped for L2"


def plainest(op: Op, view: MatrixView, work: Work) -> Sketch:
    """The tree in which everything goes through pointers; the operands of all products are loaded once each.

    Products with factors are multiplied by them in each step, which is then no longer than these stay the same.
    """
    lefts = dict.fromkeys(view.left(p) for p in op.products)
    rights = dict.fromkeys(view.right(p) for p in op.products)
    return Sketch(
        view=view,
        work=work,
        loads=(*(PointerLoad(x, "m", "k") for x in lefts), *(PointerLoad(x, "k", "n") for x in rights)),
        combine=ScaledCombine(run_length(op, view, "k", op.factors)) if op.factors else DotCombine(),
        epilogue=ChainEpilogue(),
        finish=DirectFinish(PointerStore()),
        launch=Launch(),
    )


class ChannelRule:
    """Multiplies and adds without tensor cores where every column has rows of its own."""

    name = "channelwise"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on a view whose columns are matrices of a batch."""
        if not isinstance(state, MatrixView) or not state.channelwise:
            return
        (product,) = op.products
        loads = (ChannelLoad(product.left, "m", "n"), ChannelLoad(product.right, "k", "n"))
        finish = DirectFinish(PointerStore())
        tree = Sketch(state, GridWork(), loads, ChannelCombine(), ChainEpilogue(), finish, Launch())
        yield tree, "block_m x block_n tiles, a step of the reduction after the other, no tensor cores"


class MatrixVectorRule:
    """Multiplies and adds without tensor cores where the rows are too few to fill their tiles."""

    name = "matrix-vector"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on tiles of at most ``FEW_ROWS`` rows whose operands are gathered, and that one product fills."""
        if not isinstance(state, Sketch) or not isinstance(state.combine, DotCombine) or state.view.swapped:
            return
        gathered = all(isinstance(load, PointerLoad) for load in state.loads)
        simple = len(op.products) == 1 and op.accumulate == "fp32" and isinstance(state.work, GridWork | SplitWork)
        simple = simple and not op.factors
        if gathered and simple and state.view.extent("m") <= FEW_ROWS:
            yield replace(state, combine=SumCombine()), "a row of block_n columns a program, no tensor cores"
