"""Split reduction: parts of the reduction are dealt to several programs, and their partial sums put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.sketches.nodes import (
    AtomicFinish,
    DirectFinish,
    GridWork,
    PointerStore,
    SplitWork,
    StreamWork,
    WorkspaceFinish,
)
from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target

SHORTEST = 128
#: Rows or columns below which all tiles lie in one strip, which plain parts deal out as evenly.
SHORTEST_SIDE = 64


def _may_split(op: Op, state: State) -> bool:
    """A grid of tiles that store directly, whose sums are floats over a static reduction of ``SHORTEST`` or more."""
    if not (isinstance(state, Sketch) and isinstance(state.work, GridWork) and op.accumulate == "fp32"):
        return False
    static = not state.view.is_dynamic("k") and not state.view.is_dynamic("batch")
    long = state.view.extent("k") >= SHORTEST and not state.view.channelwise  # steps of one term are not worth parts
    return state.finish == DirectFinish(PointerStore()) and long and static


class SplitReductionRule:
    """Cuts the reduction of every tile into parts."""

    name = "split reduction"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Two forms: a second kernel that adds the parts in order, and, if the order is free, atomic additions."""
        if not isinstance(state, Sketch) or not _may_split(op, state):
            return
        yield replace(state, work=SplitWork(), finish=WorkspaceFinish()), "fp32 workspace plus a second kernel"
        grows = any(state.view.is_dynamic(g) for g in ("m", "n"))  # then copies and zeros could change places
        if not op.deterministic and not (grows and any(load.copied for load in state.loads)):
            yield replace(state, work=SplitWork(), finish=AtomicFinish()), "fp32 atomics, the last block finishes"


class StreamRule:
    """Deals out the steps of the last tiles evenly over a fixed number of programs."""

    name = "stream-K"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires where the reduction may be split in any order, all sizes are known and no side is short."""
        if not isinstance(state, Sketch) or not _may_split(op, state) or op.deterministic or state.combine.summed:
            return
        if any(state.view.is_dynamic(g) or state.view.extent(g) < SHORTEST_SIDE for g in ("m", "n")):
            return
        work = StreamWork(target.sms)
        yield replace(state, work=work, finish=AtomicFinish()), f"{target.sms} programs, the last tiles cut evenly"
