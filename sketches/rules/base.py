"""What a rule is: a guarded rewrite of the state of a derivation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from autosched.sketches.op import Op
from autosched.sketches.prepared import Prepared
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target
from autosched.sketches.view import MatrixView

#: A derivation starts at the op, or at the same written otherwise, passes through a matrix view and goes on over
#: sketches.
State = Op | Prepared | MatrixView | Sketch


class Rule(Protocol):
    """A guarded rewrite. It reads axes, access maps and the tree, never the op's name."""

    name: str

    def apply(self, op: Op, target: Target, state: State) -> Iterator[tuple[State, str]]:
        """Every state that the rule makes of ``state``, each with a line on what was done; none if it does not fit.

        ``op`` is what ``state`` computes, written otherwise where it is a view of that.
        """
        ...
