"""Split reduction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.sketches.nodes import DirectFinish, GridWork, PointerStore, SplitWork, WorkspaceFinish
from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target

SHORTEST = 128


class SplitReductionRule:
    """Cuts the reduction into parts: fp32 partial sums in a workspace, added in order by a second kernel."""

    name = "split reduction"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on a grid of tiles whose reduction is static and at least ``SHORTEST`` long."""
        if not (isinstance(state, Sketch) and isinstance(state.work, GridWork)):
            return
        long_enough = state.view.extent("k") >= SHORTEST and not state.view.is_dynamic("k")
        if state.finish == DirectFinish(PointerStore()) and long_enough:
            yield replace(state, work=SplitWork(), finish=WorkspaceFinish()), "fp32 workspace plus a second kernel"
