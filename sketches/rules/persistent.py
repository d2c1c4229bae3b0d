"""Persistent programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.sketches.nodes import DirectFinish, GridWork, PersistentWork, SubtiledFinish
from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target


class PersistentRule:
    """One program an SM that loops over tiles, with its epilogue in column pieces."""

    name = "persistent"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on a grid of tiles that store their result directly."""
        if not isinstance(state, Sketch) or state.combine.summed:
            return
        if isinstance(state.work, GridWork) and isinstance(state.finish, DirectFinish):
            yield (
                replace(state, work=PersistentWork(target.sms), finish=SubtiledFinish(state.finish.store)),
                f"a tile loop over {target.sms} programs, epilogue in column pieces",
            )
