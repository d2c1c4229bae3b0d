"""Emitters of the Load nodes: a prologue before the reduction loop and an assignment inside it.

Inside the loop ``k0`` is the first index of the step. An operand that has the tile's columns is loaded in one piece
for each accumulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch

from autosched.sketches.box import Side, box_map
from autosched.sketches.codegen.copy import emit_copy
from autosched.sketches.codegen.gather import Gather, StepGather
from autosched.sketches.codegen.kernel import WHOLE, Kernel, Span, along, digits, load, plus, scaled
from autosched.sketches.nodes import ChannelLoad, CopiedLoad, ImageLoad, Load, PointerLoad, TmaLoad
from autosched.sketches.op import Op, Operand


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
    tensor, group = k.op.operand(node.operand), node.fixed
    if _scattered(node, k):
        for gather in _gathers(node, k):
            gather.emit_prologue()
        return
    for span in _spans(node, k):
        name = node.operand + span.suffix
        k.line(f"{name}_{group} = {k.place(group, span)} + tl.arange(0, {k.width(group, span)})")
        offset = k.offset(tensor, group, f"{name}_{group}")
        k.line(f"{name}_base = {k.base(tensor)}" + (f" + {along(offset, _axis(node, group))}" if offset else ""))


@emit_step.register
def _pointer_step(node: PointerLoad, k: Kernel) -> None:
    if _scattered(node, k):
        gathers = _gathers(node, k)
        gathers[0].emit_indices()
        for gather in gathers:
            gather.emit_step(_caching(node, k))
        return
    tensor, group = k.op.operand(node.operand), node.fixed
    block = k.knob("block_k")
    k.line(f"{node.operand}_k = k0 + tl.arange(0, {block})")
    offset = k.offset(tensor, "k", f"{node.operand}_k")
    for span in _spans(node, k):
        name = node.operand + span.suffix
        bounds = k.bounds(
            [
                (group, f"{name}_{group}", k.knobs[f"block_{group}"], _axis(node, group)),
                ("k", f"{node.operand}_k", k.knobs["block_k"], _axis(node, "k")),
            ]
        )
        pointers = f"{name}_base" + (f" + {along(offset, _axis(node, 'k'))}" if offset else "")
        shape = f"({k.width(node.rows, span)}, {k.width(node.columns, span)})"
        if not (offset and k.offset(tensor, group, "x")):
            pointers = f"tl.broadcast_to({pointers}, {shape})"
        k.line(f"{name} = {load(pointers, bounds, _caching(node, k))}")


@emit_prologue.register
def _tma_prologue(node: TmaLoad, k: Kernel) -> None:
    tensor, groups = k.op.operand(node.operand), _stored(node)
    for span in _spans(node, k):
        block = (_length(k, groups[0], span), _length(k, groups[1], span))
        k.descriptor(f"{node.operand}_desc{span.suffix}", tensor, k.box(tensor, groups, block, _folded(node, k)))


@emit_step.register
def _tma_step(node: TmaLoad, k: Kernel) -> None:
    _boxes(node, k, _folded(node, k))


@emit_prologue.register
def _copied_prologue(node: CopiedLoad, k: Kernel) -> None:
    tensor, groups = k.op.operand(node.operand), _stored(node)
    copy = emit_copy(k, tensor, groups[0])
    for span in _spans(node, k):
        block = (_length(k, groups[0], span), _length(k, groups[1], span))
        k.descriptor(f"{node.operand}_desc{span.suffix}", tensor, copy.box(block))


@emit_step.register
def _copied_step(node: CopiedLoad, k: Kernel) -> None:
    _boxes(node, k, folded=k.batched)


@emit_prologue.register
def _image_prologue(node: ImageLoad, k: Kernel) -> None:
    tensor, lengths = k.op.operand(node.operand), dict(zip(node.boxed, k.box_sides, strict=True))
    lengths[node.image.channel] = k.knobs["block_k"]
    k.descriptor(f"{node.operand}_desc", tensor, k.image(tensor, node.image, lengths))
    k.emit_corner(node.operand)


@emit_step.register
def _image_step(node: ImageLoad, k: Kernel) -> None:
    name, tensor, channels = node.operand, k.op.operand(node.operand), k.op.extents[node.image.channel]
    names = {axis: f"{name}_{axis}" for axis in node.boxed}
    names[node.image.channel] = "k0"
    taps = [x for fused in k.view.group("k") for x in fused.axes if k.op.extents[x] > 1][:-1]
    if taps:
        k.line(f"{name}_tap = k0 // {channels}")
        names[node.image.channel] = f"k0 - {name}_tap * {channels}"
    names |= _indices(k, f"{name}_tap", taps)
    if k.batched:
        names |= _indices(k, "batch", [x for fused in k.view.group("batch") for x in fused.axes if k.op.extents[x] > 1])
    places = [_coordinate(k.op, tensor, side, names, node.boxed) for side in node.image.sides]
    if node.image.folded:
        row = _coordinate(k.op, tensor, node.image.folded, names, node.boxed)
        places[-1] = f"{row} * {tensor.shape[node.image.sides[-1].index]} + {places[-1]}"
    shape = f"({k.knob('block_n')}, {k.knob('block_k')})"
    k.line(f"{name} = {name}_desc.load([{', '.join(places)}]).reshape{shape}.T")


def _coordinate(op: Op, tensor: Operand, side: Side, names: Mapping[str, str], boxed: tuple[str, ...]) -> str:
    """The index along a dimension of a descriptor, from those of the axes; axes without a name have the index 0."""
    expr = tensor.index[side.index]
    terms = {axis: c for axis, c in expr.terms if axis in names and c and (side.step == 1 or axis not in boxed)}
    text = " + ".join(scaled(names[axis], c) for axis, c in terms.items())
    if side.step == 1:
        return plus(text, expr.const)
    corner = next((names[axis] for axis in expr.axes if axis in boxed), "0")
    if not text and expr.const == 0:
        return corner
    least = expr.const + sum(min(0, c * (op.extents[axis] - 1)) for axis, c in terms.items())
    lift = -(least // side.step) * side.step if least < 0 else 0  # so that the division rounds down
    shift = f"({plus(text, expr.const + lift)})"
    return f"({shift} % {side.step})" if side.low else plus(f"{corner} + {shift} // {side.step}", -lift // side.step)


def _indices(k: Kernel, flat: str, axes: Sequence[str]) -> dict[str, str]:
    """The index of each axis, from the index ``flat`` of all of them."""
    parts = digits(flat, [k.op.extents[axis] for axis in axes])
    return {axis: f"({part})" for axis, part in zip(axes, parts, strict=True)}


@emit_prologue.register
def _channel_prologue(node: ChannelLoad, k: Kernel) -> None:
    if node.rows == "m":
        _step_gather(node, k).emit_prologue()
        return
    tensor, name = k.op.operand(node.operand), node.operand
    k.line(f"{name}_n = {k.place('n', k.spans[0])} + tl.arange(0, {k.knob('block_n')})")
    k.line(f"{name}_base = {k.base(tensor)} + {k.offset(tensor, 'n', f'{name}_n')}")


@emit_step.register
def _channel_step(node: ChannelLoad, k: Kernel) -> None:
    if node.rows == "m":
        gather = _step_gather(node, k)
        gather.emit_indices()
        gather.emit_step("")
        return
    name, offset = node.operand, k.offset(k.op.operand(node.operand), "k", "k0")
    bounds = k.bounds([("n", f"{name}_n", k.knobs["block_n"], "")])
    k.line(f"{name} = {load(f'{name}_base' + (f' + {offset}' if offset else ''), bounds)}")


def _step_gather(node: ChannelLoad, k: Kernel) -> StepGather:
    return StepGather(k, k.op.operand(node.operand), "m", "[:, None]", "[None, :]", k.spans[0])


def _scattered(node: PointerLoad, k: Kernel) -> bool:
    """Whether a group walks the operand with several strides, or some indices lie outside."""
    several = any(len(k.view.walk(group, node.operand)) > 1 for group in (node.fixed, "k"))
    return several or node.operand in dict(k.view.guards)


def _gathers(node: PointerLoad, k: Kernel) -> list[Gather]:
    """The gather of each piece."""
    tensor, group = k.op.operand(node.operand), node.fixed
    return [Gather(k, tensor, group, _axis(node, group), _axis(node, "k"), span) for span in _spans(node, k)]


def _caching(node: PointerLoad, k: Kernel) -> str:
    """Keywords of a gather that say what the caches do with it."""
    evicted = {1: "n", 2: "m"}.get(k.knobs["evict"]) == node.fixed
    text = ', eviction_policy="evict_first"' if evicted else ""
    return text + (', cache_modifier=".cg"' if k.knobs["cache"] else "")


def _boxes(node: TmaLoad, k: Kernel, folded: bool) -> None:
    """Emits the loads of the boxes of one step."""
    outer, inner = _stored(node)
    for span in _spans(node, k):
        places = ["k0" if g == "k" else k.place(g, span) for g in (outer, inner)]
        if folded:
            places[0] = f"batch * {k.extent(outer)} + {places[0]}"
        turned = ".T" if node.transposed else ""
        k.line(f"{node.operand}{span.suffix} = {node.operand}_desc{span.suffix}.load([{', '.join(places)}]){turned}")


def _folded(node: TmaLoad, k: Kernel) -> bool:
    box = box_map(k.view, k.op.operand(node.operand), node.rows, node.columns)
    assert box is not None
    return box.folded


def _spans(node: Load, k: Kernel) -> tuple[Span, ...]:
    return k.spans if "n" in (node.rows, node.columns) else (WHOLE,)


def _length(k: Kernel, group: str, span: Span) -> int:
    return span.width if group == "n" else k.knobs[f"block_{group}"]


def _stored(node: TmaLoad) -> tuple[str, str]:
    """The groups of the node's tensor, outermost first."""
    return (node.columns, node.rows) if node.transposed else (node.rows, node.columns)


def _axis(node: Load, group: str) -> str:
    return "[:, None]" if node.rows == group else "[None, :]"
