"""The phase split: an op that reads elements between zeros, over indices of which every one meets an element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autosched.sketches.op import Affine, Axis, Op, Operand
from autosched.sketches.prepared import Prepared


def phased(op: Op) -> Prepared | None:
    """``op`` with its strided axes taken apart into step and phase, or ``None`` where no index is divided so.

    With a stride of u the gradient of a convolution's input reads the element ``(h + p - r) / u`` where that is whole.
    Indices ``h = u * h' + a`` of a phase a meet elements at the taps ``r = u * r' + a + p`` alone, and read the element
    ``h' - r'``, the same for all phases: these become columns beside the channels. Taps that a phase does not have lie
    outside the kernel and count as zero. It takes a number of indices that the stride divides.
    """
    if len(op.products) != 1:
        return None
    (product,) = op.products
    found = op
    for name in (product.left, product.right):
        for place, expr in enumerate(op.operand(name).index):
            if expr.divisor > 1:
                changed = _split(found, name, place)
                if changed is None:
                    return None
                found = changed
    return None if found is op else Prepared("phase", found, ())


def _split(op: Op, name: str, place: int) -> Op | None:
    """The op with the axes of one divided index taken apart."""
    expr = op.operand(name).index[place]
    by_kind = {op.axis(axis).kind: (axis, c) for axis, c in expr.terms}
    if len(expr.terms) != 2 or set(by_kind) != {"parallel", "reduce"}:
        return None
    (walked, forward), (tap, backward) = by_kind["parallel"], by_kind["reduce"]
    axes, stride = {a.name: a for a in op.axes}, expr.divisor
    static = not axes[walked].dynamic and not axes[tap].dynamic
    if (forward, backward) != (1, -1) or axes[walked].extent % stride or not static:
        return None
    phase = Axis(f"{walked}{stride}", stride, "parallel")
    first = -((stride - 1 + expr.const) // stride)  # the least r' for which some phase has a tap
    last = (axes[tap].extent - 1 - expr.const) // stride
    if phase.name in axes or last < first:
        return None
    terms = {
        walked: (((walked, stride), (phase.name, 1)), 0),
        tap: (((tap, stride), (phase.name, 1)), stride * first + expr.const),
    }
    axes[walked] = replace(axes[walked], extent=axes[walked].extent // stride)
    axes[tap] = replace(axes[tap], extent=last - first + 1)
    products = {x for p in op.products for x in (p.left, p.right)}
    operands = tuple(_substituted(o, terms, zero_padded=o.name in products) for o in op.operands)
    output = _substituted(op.output, terms, zero_padded=False)
    return replace(op, axes=(*axes.values(), phase), operands=operands, output=output)


def _substituted(
    operand: Operand, terms: Mapping[str, tuple[tuple[tuple[str, int], ...], int]], *, zero_padded: bool
) -> Operand:
    """The operand with other terms in place of some axes; a divisor goes where it divides what is left."""
    index = []
    for expr in operand.index:
        found: dict[str, int] = {}
        const = expr.const
        for name, c in expr.terms:
            parts, shift = terms.get(name, (((name, 1),), 0))
            const += c * shift
            for part, factor in parts:
                found[part] = found.get(part, 0) + c * factor
        kept = {name: c for name, c in found.items() if c}
        divisor = expr.divisor
        if all(c % divisor == 0 for c in (*kept.values(), const)):
            kept, const, divisor = {name: c // divisor for name, c in kept.items()}, const // divisor, 1
        index.append(Affine(tuple(kept.items()), const, divisor))
    return replace(operand, index=tuple(index), zero_padded=operand.zero_padded or zero_padded)
