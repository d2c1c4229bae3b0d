"""Axis fusion and matrix view."""

from __future__ import annotations

from collections.abc import Iterator

from autosched.sketches.op import Op
from autosched.sketches.rules.base import State
from autosched.sketches.target import Target
from autosched.sketches.view import matrix_views


class MatrixViewRule:
    """From the op to each legal grouping of its fused axes into batch, M, N and K."""

    name = "matrix view"

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Fires on the op itself."""
        if isinstance(state, Op):
            for view in matrix_views(op):
                yield view, view.tag
