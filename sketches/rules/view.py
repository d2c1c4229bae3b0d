"""Axis fusion and matrix view."""

from __future__ import annotations

from collections.abc import Iterator

from autosched.sketches.box import image_load
from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.target import Target
from autosched.sketches.view import MatrixView, matrix_views

#: Rows below which a dot of full speed (``wgmma``) is to be had from the columns alone.
SKINNY = 64


class MatrixViewRule:
    """From the op to each legal grouping of its fused axes into batch, M, N and K."""

    name = "matrix view"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on the op itself."""
        if isinstance(state, Op):
            for view in matrix_views(op):
                yield view, view.tag


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
