"""Ragged rows: tiles that hold the rows of one group each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.sketches.nodes import DirectFinish, RaggedPersistentWork, RaggedWork, SubtiledFinish
from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.rules.tile import plainest
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target
from autosched.sketches.view import MatrixView


class RaggedRule:
    """Tiles of each group's own rows, dealt out as the ends of the groups say: a tile a program, or in a loop."""

    name = "ragged rows"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on a view of an op with ragged rows, and on a program a tile, which becomes a loop over tiles."""
        if op.ragged is None:
            return
        if isinstance(state, MatrixView):
            yield (
                plainest(op, state, RaggedWork(op.ragged.offsets)),
                f"block_m x block_n tiles of each group's rows, found by {op.ragged.offsets}",
            )
        if isinstance(state, Sketch) and isinstance(state.work, RaggedWork) and isinstance(state.finish, DirectFinish):
            yield (
                replace(
                    state,
                    work=RaggedPersistentWork(op.ragged.offsets, target.sms),
                    finish=SubtiledFinish(state.finish.store),
                ),
                f"a tile loop over {target.sms} programs, epilogue in column pieces",
            )
