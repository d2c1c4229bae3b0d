"""Emitters of the Load nodes: a prologue before the reduction loop and an assignment inside it.

Inside the loop ``k0`` is the first index of the step.
"""

from __future__ import annotations

from functools import singledispatch

from autosched.sketches.codegen.kernel import Kernel, along, load
from autosched.sketches.nodes import Load, PointerLoad, TmaLoad

BLOCKS = {"m": "block_m", "n": "block_n", "k": "block_k"}


@singledispatch
def emit_prologue(node: Load, k: Kernel) -> None:
    """Emits what stays the same over the reduction loop."""
    raise NotImplementedError(type(node).__name__)


@singledispatch
def emit_step(node: Load, k: Kernel) -> None:
    """Emits the assignment of the operand's tile of one step."""
    raise NotImplementedError(type(node).__name__)


@emit_prologue.register
def _pointer_prologue(node: PointerLoad, k: Kernel) -> None:
    tensor, group = k.op.operand(node.operand), _fixed_group(node)
    block = k.knob(BLOCKS[group])
    k.line(f"{node.operand}_{group} = tile_{group} * {block} + tl.arange(0, {block})")
    offset = k.offset(tensor, group, f"{node.operand}_{group}")
    base = f"{k.pointer(tensor)}{k.batch_offset(tensor)}"
    k.line(f"{node.operand}_base = {base}" + (f" + {along(offset, _axis(node, group))}" if offset else ""))


@emit_step.register
def _pointer_step(node: PointerLoad, k: Kernel) -> None:
    tensor, group, name = k.op.operand(node.operand), _fixed_group(node), node.operand
    block = k.knob("block_k")
    k.line(f"{name}_k = k0 + tl.arange(0, {block})")
    offset = k.offset(tensor, "k", f"{name}_k")
    bounds = k.bounds(
        [
            (group, f"{name}_{group}", k.knobs[BLOCKS[group]], _axis(node, group)),
            ("k", f"{name}_k", k.knobs["block_k"], _axis(node, "k")),
        ]
    )
    pointers = f"{name}_base" + (f" + {along(offset, _axis(node, 'k'))}" if offset else "")
    shape = f"({k.knob(BLOCKS[node.rows])}, {k.knob(BLOCKS[node.columns])})"
    if not (offset and k.offset(tensor, group, "x")):
        pointers = f"tl.broadcast_to({pointers}, {shape})"
    k.line(f"{name} = {load(pointers, bounds)}")


@emit_prologue.register
def _tma_prologue(node: TmaLoad, k: Kernel) -> None:
    groups = (node.columns, node.rows) if node.transposed else (node.rows, node.columns)
    block = (k.knobs[BLOCKS[groups[0]]], k.knobs[BLOCKS[groups[1]]])
    k.descriptor(k.op.operand(node.operand), groups, block)


@emit_step.register
def _tma_step(node: TmaLoad, k: Kernel) -> None:
    groups = (node.columns, node.rows) if node.transposed else (node.rows, node.columns)
    starts = ", ".join("k0" if g == "k" else f"tile_{g} * {k.knob(BLOCKS[g])}" for g in groups)
    k.line(f"{node.operand} = {node.operand}_desc.load([{starts}])" + (".T" if node.transposed else ""))


def _fixed_group(node: Load) -> str:
    return node.rows if node.columns == "k" else node.columns


def _axis(node: Load, group: str) -> str:
    return "[:, None]" if node.rows == group else "[None, :]"
