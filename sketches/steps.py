"""The steps of an epilogue: what each one does to the accumulator, in fp32, and what it takes for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a kind of step does to the value ``x``.

    Attributes:
        does: ``add`` (x + factor * operand), ``multiply`` (x * operand), ``scale`` (x * factor), ``gate`` (x times
            another accumulator) or ``apply`` (a function of x alone).
        takes: Shape of its operand: ``row`` (one value for each index of the output's last axis), ``column`` (one for
            each index of the others), ``full`` (the output's own), ``scalar``, or ``None``.
        transcendental: Whether its value depends on the implementation of an elementary function.
    """

    does: Literal["add", "multiply", "scale", "gate", "apply"]
    takes: Literal["row", "column", "full", "scalar"] | None = None
    transcendental: bool = False


STEPS: dict[str, StepInfo] = {
    "bias": StepInfo("add", "row"),
    "residual": StepInfo("add", "full"),
    "relu": StepInfo("apply"),
    "gelu": StepInfo("apply", transcendental=True),
    "gelu_tanh": StepInfo("apply", transcendental=True),
    "silu": StepInfo("apply", transcendental=True),
    "row_scale": StepInfo("multiply", "column"),
    "column_scale": StepInfo("multiply", "row"),
    "scale": StepInfo("multiply", "scalar"),
    "alpha": StepInfo("scale"),
    "gate": StepInfo("gate"),
}

#: Chains that people name as one step: two products, of which the first is activated and gated by the second.
GATED: dict[str, tuple[str, ...]] = {"swiglu": ("silu", "gate"), "geglu": ("gelu", "gate")}
