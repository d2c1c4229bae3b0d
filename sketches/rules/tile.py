"""Multi-level tile and group order."""

from __future__ import annotations

from collections.abc import Iterator

from autosched.sketches.nodes import (
    ChainEpilogue,
    DirectFinish,
    DotCombine,
    GridWork,
    Launch,
    PointerLoad,
    PointerStore,
)
from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target
from autosched.sketches.view import MatrixView


class TileRule:
    """From a matrix view to the plainest tree: a tile a program, a pipelined reduction loop, grouped program order."""

    name = "multi-level tile"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on a view; the operands of all products are loaded once each."""
        if not isinstance(state, MatrixView):
            return
        loads: dict[str, PointerLoad] = {}
        for product in op.products:
            loads.setdefault(product.left, PointerLoad(product.left, "m", "k"))
            loads.setdefault(product.right, PointerLoad(product.right, "k", "n"))
        yield (
            Sketch(
                view=state,
                work=GridWork(),
                loads=tuple(loads.values()),
                combine=DotCombine(),
                epilogue=ChainEpilogue(),
                finish=DirectFinish(PointerStore()),
                launch=Launch(),
            ),
            "block_m x block_n tiles, a loop over block_k, tile rows grouped for L2",
        )
