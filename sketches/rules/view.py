"""Axis fusion and matrix view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.sketches.box import image_load
from autosched.sketches.op import Op
from autosched.sketches.phases import phased
from autosched.sketches.prepared import Prepared, windowed
from autosched.sketches.rules.base import State
from autosched.sketches.target import Target
from autosched.sketches.view import MatrixView, matrix_views

#: Rows below which a dot of full speed (``wgmma``) is to be had from the columns alone.
SKINNY = 64


class MatrixViewRule:
    """From the op to each legal grouping of its fused axes into batch, M, N and K."""

    name = "matrix view"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on the op, and on the same written otherwise."""
        if isinstance(state, Op | Prepared):
            for view in matrix_views(op):
                found = replace(view, prepared=state) if isinstance(state, Prepared) else view
                yield found, found.tag


class WindowRule:
    """From the op to the same over padded copies, in which windows of few channels are runs of memory."""

    name = "window copy"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on the op itself where its image has fewer channels than one load takes."""
        prepared = windowed(op) if isinstance(state, Op) else None
        if prepared is not None:
            padded = ", ".join(f"{x.operand} as {' x '.join(map(str, x.shape))}" for x in prepared.copies)
            yield prepared, f"padded copies before: {padded}"


class PhaseRule:
    """From the op to the same with strided axes taken apart, so that no index is divided."""

    name = "phase split"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on the op itself where an operand's index is divided by a stride that divides the axis."""
        prepared = phased(op) if isinstance(state, Op) else None
        if prepared is not None:
            extents = ", ".join(f"{a.name} {a.extent}" for a in prepared.op.axes if a not in op.axes)
            yield prepared, f"step and phase of strided axes: {extents}"


class OperandSideRule:
    """Exchanges rows and columns, so that the tensor cores get rows of the other operand."""

    name = "operand side"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on a view as it is written that has fewer rows than ``SKINNY`` and more columns.

        And on one whose rows are read as boxes of an image: on the right of the dot these stay in shared memory.
        """
        if op.ragged is not None:  # groups are of rows
            return
        if not isinstance(state, MatrixView) or state.swapped or state.channelwise:
            return
        turned = state.transposed()
        rows = [op.operand(state.left(product)) for product in op.products]
        if all(image_load(op, turned, x) for x in rows) or state.extent("m") < SKINNY <= state.extent("n"):
            yield turned, turned.tag
