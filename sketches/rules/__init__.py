"""The derivation: the closure of the rules over an op. A new rule is a file here and a line in ``RULES``."""

from __future__ import annotations

from autosched.errors import UnsupportedError
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.op import Op
from autosched.sketches.prepared import Prepared
from autosched.sketches.rules.base import Rule, State
from autosched.sketches.rules.load_path import CopyRule, ImageRule, LoadPathRule, StorePathRule
from autosched.sketches.rules.persistent import PersistentRule
from autosched.sketches.rules.ragged import RaggedRule
from autosched.sketches.rules.split import SplitReductionRule, StreamRule
from autosched.sketches.rules.tile import ChannelRule, MatrixVectorRule, TileRule
from autosched.sketches.rules.view import MatrixViewRule, OperandSideRule, PhaseRule, WindowRule
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch, Step
from autosched.sketches.target import Target

RULES: tuple[Rule, ...] = (
    MatrixViewRule(),
    TileRule(),
    LoadPathRule(),
    PersistentRule(),
    StorePathRule(),
    SplitReductionRule(),
    OperandSideRule(),
    MatrixVectorRule(),
    CopyRule(),
    StreamRule(),
    RaggedRule(),
    ImageRule(),
    ChannelRule(),
    WindowRule(),
    PhaseRule(),
)


def derive(op: Op, target: Target, rules: tuple[Rule, ...] = RULES) -> tuple[Sketch, ...]:
    """Every sketch of ``op`` on ``target``, in an order that depends on nothing but the rules.

    Raises:
        UnsupportedError: No rule makes a sketch of the op, or the device has no products of its type.
    """
    target.peak_flops(op.operand(op.products[0].left).dtype.name)
    queue: list[tuple[State, tuple[Step, ...]]] = [(op, ())]
    seen: set[State] = {op}
    sketches: list[Sketch] = []
    for state, steps in queue:  # grows while it is walked: breadth first, so that derivations are shortest
        if isinstance(state, Sketch):
            sketches.append(state.completed(op, steps))
        for rule in rules:
            for result, what in rule.apply(_computed(op, state), target, state):
                if result not in seen:
                    seen.add(result)
                    queue.append((result, (*steps, Step(rule.name, what))))
    if not sketches:
        raise UnsupportedError(
            f"no sketch is derived for {op.key()}", "every axis must index two of left, right and output"
        )
    return tuple(sketches)


def _computed(op: Op, state: State) -> Op:
    """What a state computes: the op, or the same written otherwise."""
    if isinstance(state, Op):
        return state
    if isinstance(state, Prepared):
        return state.op
    return (state.view if isinstance(state, Sketch) else state).over(op)


def default_schedule(op: Op, target: Target, sketches: tuple[Sketch, ...]) -> Schedule:
    """What an experienced user would try first: the plainest sketch with the knobs' defaults, tiles cut to the op.

    Narrower where nothing as wide can run: two accumulators of the default tile do not fit the registers.
    """
    sketch = sketches[0]
    plain = Schedule.of(sketch)
    columns = next(k.values for k in sketch.knobs if k.name == "block_n")
    narrower = [v for v in reversed(columns) if v < plain.knobs["block_n"] and v & (v - 1) == 0]
    tried = (plain, *(Schedule.of(sketch, block_n=v) for v in narrower))
    return next((s for s in tried if explain_invalid(op, target, s) is None), plain)
