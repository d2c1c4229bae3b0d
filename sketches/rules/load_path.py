"""Load path: TMA boxes in place of pointers, for each operand and for the output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autosched.sketches.box import LARGEST_EXTENT, LINE, box_map, image_load, image_store
from autosched.sketches.nodes import (
    AtomicFinish,
    CopiedLoad,
    DirectFinish,
    ImageLoad,
    ImageStore,
    Load,
    PointerLoad,
    PointerStore,
    SubtiledFinish,
    TmaLoad,
    TmaStore,
)
from autosched.sketches.op import Op, Operand
from autosched.sketches.rules.base import State
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target
from autosched.sketches.view import MatrixView

#: Rows or columns of an operand below which it is not copied.
WORTH_COPYING = 64


class LoadPathRule:
    """Replaces one operand's pointer gather by a TMA box where its map is a strided box and aligned."""

    name = "load path"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires once for each side whose operands are still gathered and may all be boxes."""
        if not isinstance(state, Sketch) or not target.has_tma or state.combine.summed:
            return
        for side in _sides(state):
            boxes = [box_map(state.view, op.operand(load.operand), load.rows, load.columns) for load in side]
            if not all(isinstance(load, PointerLoad) for load in side) or None in boxes:
                continue
            found = {
                load.operand: TmaLoad(load.operand, load.rows, load.columns, box.transposed)
                for load, box in zip(side, boxes, strict=True)
                if box is not None
            }
            yield _replaced(state, found), f"{', '.join(found)} through a TMA descriptor"


class ImageRule:
    """Replaces the pointer gather of the columns by boxes of an image, where every tile and step of them is one."""

    name = "image boxes"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on the right of the dot, where no simpler box describes the operand and some depth divides channels.

        Before that the output is stored through pointers, since a tile of it becomes a box as well.
        """
        if not isinstance(state, Sketch) or not target.has_tma or state.combine.summed or op.ragged is not None:
            return
        if not isinstance(getattr(state.finish, "store", PointerStore()), PointerStore):
            return
        (side,) = [side for side in _sides(state) if side[0].fixed == "n"]
        maps = [image_load(op, state.view, op.operand(load.operand)) for load in side]
        if not all(isinstance(load, PointerLoad) for load in side) or None in maps:
            return
        found = {
            load.operand: ImageLoad(load.operand, load.rows, load.columns, True, image)
            for load, image in zip(side, maps, strict=True)
            if image is not None
        }
        if all(knob.values for load in found.values() for knob in load.knobs(op, state.view)):
            yield _replaced(state, found), f"{', '.join(found)} as boxes of an image through a TMA descriptor"


class CopyRule:
    """Replaces an operand's pointer gather by boxes of a padded copy with the reduction innermost."""

    name = "padded copy"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires once for each side whose operands no descriptor describes, or whose type needs another order.

        And once on all sides whose boxes would straddle cache lines, where nothing else is the matter.
        """
        if not isinstance(state, Sketch) or not target.has_tma or state.combine.summed:
            return
        if isinstance(state.finish, AtomicFinish) and any(state.view.is_dynamic(g) for g in ("m", "n")):
            return  # the zeros would begin or end elsewhere at another size, and copies lie beside them
        if op.ragged is not None or state.view.copies:
            return  # a copy has the same rows for each matrix of a batch, and none is copied again
        for side in _sides(state):
            if not all(isinstance(load, PointerLoad) and _needs_copy(op, state.view, load) for load in side):
                continue
            found = _copied(side)
            yield _replaced(state, found), f"{', '.join(found)} copied, rows padded to cache lines, then boxes"
        if all(isinstance(load, PointerLoad) for load in state.loads):
            found = _copied([load for load in state.loads if _straddles(op, state.view, load)])
            if found and not any(_needs_copy(op, state.view, load) for load in state.loads):
                yield _replaced(state, found), f"{', '.join(found)} copied, rows padded to cache lines"


def _sides(state: Sketch) -> Iterator[list[Load]]:
    """The loads of the left side, then those of the right."""
    for place in (("m", "k"), ("k", "n")):
        yield [load for load in state.loads if (load.rows, load.columns) == place]


def _copied(loads: list[Load]) -> dict[str, Load]:
    """A load of a copy with the reduction innermost in place of each, by operand."""
    return {x.operand: CopiedLoad(x.operand, x.rows, x.columns, x.rows == "k") for x in loads}


def _replaced(state: Sketch, found: Mapping[str, Load]) -> Sketch:
    """The sketch with the loads of some operands exchanged."""
    return replace(state, loads=tuple(found.get(load.operand, load) for load in state.loads))


def _straddles(op: Op, view: MatrixView, load: Load) -> bool:
    """Whether an operand is described by boxes whose rows begin in the midst of cache lines."""
    operand = op.operand(load.operand)
    box = box_map(view, operand, load.rows, load.columns)
    if box is None or not _may_copy(view, operand, load.fixed):
        return False
    (axis,) = view.walk(load.columns if box.transposed else load.rows, operand.name)
    return axis.stride(operand.name) * operand.dtype.bytes % LINE != 0


def _may_copy(view: MatrixView, operand: Operand, outer: str) -> bool:
    """Whether rows along ``outer`` are enough, known, and one walk, so that a copy of them can be addressed."""
    walks = [view.walk(g, operand.name) for g in (outer, "k")]
    if any(len(axes) != 1 for axes in walks) or len(view.batch) > 1 or view.extent(outer) < WORTH_COPYING:
        return False
    if not view.is_plain(operand):
        return False
    if view.is_dynamic("k") or view.is_dynamic("batch"):
        return False
    return max(view.extent("batch") * view.extent(outer), view.extent("k")) < LARGEST_EXTENT


def _needs_copy(op: Op, view: MatrixView, load: Load) -> bool:
    """Whether no descriptor describes the operand, or it is a box that the dot's type must first be turned for.

    ``wgmma`` reads elements of other sizes than two bytes only with the reduction innermost (PTX ISA). A short tile
    side is not worth a copy.
    """
    operand = op.operand(load.operand)
    if not _may_copy(view, operand, load.fixed):
        return False
    box = box_map(view, operand, load.rows, load.columns)
    return box is None or (operand.dtype.bytes != 2 and box.transposed != (load.rows == "k"))


class StorePathRule:
    """Replaces the pointer store of the output by a TMA store where its map is a strided box and aligned."""

    name = "store path"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires where the finish stores tiles through pointers.

        A box that would overhang into the next matrix, or into the rows of the next group, is none.
        """
        if not isinstance(state, Sketch) or not target.has_tma or op.ragged is not None:
            return
        finish = state.finish
        if not isinstance(finish, DirectFinish | SubtiledFinish) or not isinstance(finish.store, PointerStore):
            return
        if any(load.boxed for load in state.loads):
            image = image_store(op, state.view)
            if image is not None:
                yield replace(state, finish=replace(finish, store=ImageStore(True, image))), "the output as image boxes"
            return
        box = box_map(state.view, op.output, "m", "n")
        if box is not None and not box.folded:
            store = TmaStore(box.transposed)
            yield replace(state, finish=replace(finish, store=store)), "the output through a TMA descriptor"
