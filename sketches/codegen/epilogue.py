"""Emitter of the Epilogue node: the op's chain on one piece of the accumulator, in fp32."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.sketches.codegen.kernel import Kernel, along, load
from autosched.sketches.nodes import ChainEpilogue
from autosched.sketches.op import Operand
from autosched.sketches.steps import STEPS

#: Steps that are functions of the value alone, as an expression of ``x``.
FUNCTIONS: dict[str, str] = {
    "relu": "tl.where({x} < 0.0, 0.0, {x})",
    "gelu": "0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476))",
    # 0.5 (1 + tanh u) = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3)
    "gelu_tanh": "{x} * tl.sigmoid(1.5957691216057308 * ({x} + 0.044715 * {x} * {x} * {x}))",
    "silu": "{x} * tl.sigmoid({x})",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of a tile of the output.

    Attributes:
        value: Name of its fp32 value.
        rows: Name of its row indices.
        columns: Name of its column indices.
        width: Number of columns.
        block_m: Rows of the tile, which decide whether rows overhang.
        block_n: Columns of the whole tile, which decide whether columns overhang.
        others: Name of the value of each further accumulator.
        first: Place of its first column in the tile.
    """

    value: str
    rows: str
    columns: str
    width: int
    block_m: int
    block_n: int
    others: tuple[tuple[str, str], ...] = ()
    first: int = 0


def emit_epilogue(node: ChainEpilogue, k: Kernel, piece: Piece) -> None:
    """Emits the chain; the value keeps its name."""
    x = piece.value
    if k.op.epilogue and k.op.accumulate != "fp32":
        k.line(f"{x} = {x}.to(tl.float32)")
    for step in k.op.epilogue:
        does = STEPS[step.kind].does
        if does == "apply":
            k.line(f"{x} = {FUNCTIONS[step.kind].format(x=x)}")
        elif does == "scale":
            k.line(f"{x} *= {step.factor!r}")
        elif does == "gate":
            k.line(f"{x} *= {dict(piece.others)[str(step.accumulator)]}")
        else:
            pointers, bounds = tile_pointers(k, k.op.operand(str(step.operand)), piece)
            factor = f"{step.factor!r} * " if step.factor != 1.0 else ""
            k.line(f"{x} {'+' if does == 'add' else '*'}= {factor}{load(pointers, bounds)}.to(tl.float32)")


def tile_pointers(k: Kernel, tensor: Operand, piece: Piece) -> tuple[str, str]:
    """Pointers to the piece's elements of ``tensor`` and their bounds, over the groups that index it."""
    pointers, bounds = k.base(tensor), []
    for group, index, block, axis in (
        ("m", piece.rows, piece.block_m, "[:, None]"),
        ("n", piece.columns, piece.block_n, "[None, :]"),
    ):
        offset = k.offset(tensor, group, index)
        if offset:
            pointers += f" + {along(offset, axis)}"
            bounds.append((group, index, block, axis))
    return pointers, k.bounds(bounds)
