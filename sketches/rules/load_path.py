"""Load path: TMA boxes in place of pointers, for each operand and for the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.sketches.nodes import DirectFinish, PointerLoad, PointerStore, SubtiledFinish, TmaLoad, TmaStore
from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target
from autosched.sketches.view import MatrixView


def box_order(view: MatrixView, op: Op, tensor: str, rows: str, columns: str) -> bool | None:
    """How a box over two groups lies in ``tensor``: ``False`` rows outermost, ``True`` columns outermost.

    ``None`` where no descriptor describes it: more than one stride in a group, no unit stride, an outer stride that
    16 bytes do not divide, batches, or an extent past 2^31 (FACTS of the CUDA driver API: cuTensorMapEncodeTiled).
    """
    groups = (view.group(rows), view.group(columns))
    if view.extent("batch") > 1 or any(len(g) != 1 for g in groups):
        return None
    (row,), (column,) = groups
    operand = op.operand(tensor)
    outer, inner = row.stride(tensor), column.stride(tensor)
    for transposed, big, unit, axes in ((False, outer, inner, (row, column)), (True, inner, outer, (column, row))):
        aligned = big * operand.dtype.bytes % 16 == 0 and 0 < big * operand.dtype.bytes < 2**40
        if unit == 1 and aligned and all(a.extent < 2**31 for a in axes):
            return transposed
    return None


class LoadPathRule:
    """Replaces one operand's pointer gather by a TMA box where its map is a strided box and aligned."""

    name = "load path"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires once for each operand that is still gathered and may be a box."""
        if not isinstance(state, Sketch) or not target.has_tma:
            return
        for i, load in enumerate(state.loads):
            if not isinstance(load, PointerLoad):
                continue
            transposed = box_order(state.view, op, load.operand, load.rows, load.columns)
            if transposed is None:
                continue
            box = TmaLoad(load.operand, load.rows, load.columns, transposed)
            loads = (*state.loads[:i], box, *state.loads[i + 1 :])
            yield replace(state, loads=loads), f"{load.operand} through a TMA descriptor"


class StorePathRule:
    """Replaces the pointer store of the output by a TMA store where its map is a strided box and aligned."""

    name = "store path"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires where the finish stores tiles through pointers and the rows of the output are the box's rows."""
        if not isinstance(state, Sketch) or not target.has_tma:
            return
        finish = state.finish
        if not isinstance(finish, DirectFinish | SubtiledFinish) or not isinstance(finish.store, PointerStore):
            return
        if box_order(state.view, op, op.output.name, "m", "n") is False:
            yield replace(state, finish=replace(finish, store=TmaStore())), "the output through a TMA descriptor"
