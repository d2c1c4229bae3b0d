"""Builders: from the arguments that people give to an :class:`~autosched.sketches.op.Op`.

This is the only module that knows operators by name. A new operator is a function here, or in a module beside this one
as ``convolutions``, and a line in ``BUILDERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from autosched.errors import InvalidInputError, UnsupportedError, UsageError
from autosched.sketches.assembly import EPILOGUES, SCALES, Wanted, assemble
from autosched.sketches.convolutions import (
    conv1d,
    conv2d,
    conv2d_input_grad,
    conv2d_weight_grad,
    conv3d,
    conv_transpose2d,
)
from autosched.sketches.op import Op, Ragged

__all__ = [
    "BUILDERS",
    "EPILOGUES",
    "LAYOUTS",
    "SCALES",
    "bmm",
    "build",
    "build_named",
    "contraction",
    "conv1d",
    "conv2d",
    "conv2d_input_grad",
    "conv2d_weight_grad",
    "conv3d",
    "conv_transpose2d",
    "gemm",
    "grouped_gemm",
]

LAYOUTS = ("nn", "nt", "tn", "tt")
#: Length of the blocks that scales of blocks stand for, along the columns and along the reduction.
BLOCK = 128


def gemm(
    m: int,
    n: int,
    k: int,
    *,
    dtype: Any = "bf16",
    layout: str = "nn",
    epilogue: Sequence[str] = (),
    out_dtype: Any = None,
    dynamic: Iterable[str] = (),
    strides: Mapping[str, Sequence[int]] | None = None,
    deterministic: bool = False,
    scales: str = "",
    alpha: float = 1.0,
    beta: float = 0.0,
    fast_accumulate: bool = False,
) -> Op:
    """``out[M, N] = epilogue(sum over K of a[M, K] * b[K, N])``, accumulated in fp32.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        k: Length of the reduction.
        dtype: Element type of both inputs.
        layout: ``n`` row-major as written, ``t`` stored transposed; the first letter is a's, the second b's
            (``nt`` is ``torch.nn.functional.linear``).
        epilogue: Names of ``EPILOGUES``, applied in order.
        out_dtype: Element type of the output; if not given ``dtype``, bf16 for 8-bit floats, int32 for int8.
        dynamic: Axes (``"M"``) whose extent is known only at run time; ``m`` is then the size to tune for.
        strides: Element strides by operand name (``a``, ``b``, ``out``) as the tensors are stored.
        deterministic: Allow only structures whose order of summation is fixed.
        scales: ``"tensor"`` (operands ``a_scale`` and ``b_scale`` of no dimension) or ``"row_column"`` (one fp32 factor
            for each row of a and each column of b), applied to the accumulator before everything else; or ``"block"``:
            ``a_scale`` [M, K / 128] has an fp32 factor for each 128 entries of a row of a, ``b_scale``, stored in b's
            order, one for each 128 x 128 of b, and each multiplies what it stands for. Both may then have strides.
        alpha: What the product is multiplied by, after the scales.
        beta: What the operand ``c``, of the output's shape, is multiplied by before it is added; no such operand for 0.
            ``c`` may be the output's own memory.
        fast_accumulate: Let products of 8-bit floats stay in the tensor cores' own accumulator.

    Raises:
        InvalidInputError: An extent, layout, epilogue or stride that no GEMM has.
        UnsupportedError: A dynamic axis that strides depend on; scales of blocks where N or K is dynamic or no multiple
            of 128.
    """
    _check_extents({"M": m, "N": n, "K": k})
    left, right = _stored(layout)
    wanted = Wanted(
        dtype=dtype,
        epilogue=epilogue,
        out_dtype=out_dtype,
        dynamic=dynamic,
        strides=strides,
        deterministic=deterministic,
        scales=scales,
        alpha=alpha,
        beta=beta,
        fast_accumulate=fast_accumulate,
    )
    extents, blocks = {"M": m, "N": n, "K": k}, {"N": BLOCK, "K": BLOCK}
    op = assemble("gemm", extents, {"a": left, "b": right}, "MN", wanted, blocks=blocks)
    return _with_spec(op, builder="gemm", shape=[m, n, k], layout=layout)


def bmm(
    b: int,
    m: int,
    n: int,
    k: int,
    *,
    dtype: Any = "bf16",
    layout: str = "nn",
    epilogue: Sequence[str] = (),
    out_dtype: Any = None,
    dynamic: Iterable[str] = (),
    strides: Mapping[str, Sequence[int]] | None = None,
    deterministic: bool = False,
    scales: str = "",
    alpha: float = 1.0,
    beta: float = 0.0,
    fast_accumulate: bool = False,
) -> Op:
    """``out[B, M, N] = epilogue(sum over K of a[B, M, K] * b[B, K, N])``: a GEMM for each index of the batch.

    Args:
        b: Number of products.
        m: Rows of each output.
        n: Columns of each output.
        k: Length of the reduction.
        dtype: Element type of both inputs.
        layout: As of ``gemm``; the batch is outermost in every tensor.
        epilogue: Names of ``EPILOGUES``, applied in order.
        out_dtype: Element type of the output; if not given ``dtype``, bf16 for 8-bit floats, int32 for int8.
        dynamic: Axes (``"B"``) whose extent is known only at run time.
        strides: Element strides by operand name (``a``, ``b``, ``out``) as the tensors are stored.
        deterministic: Allow only structures whose order of summation is fixed.
        scales: ``"tensor"`` (operands ``a_scale`` and ``b_scale`` of no dimension) or ``"row_column"`` (one fp32 factor
            for each row of a and each column of b), applied to the accumulator before everything else.
        alpha: What the product is multiplied by, after the scales.
        beta: What the operand ``c``, of the output's shape, is multiplied by before it is added; no such operand for 0.
            ``c`` may be the output's own memory.
        fast_accumulate: Let products of 8-bit floats stay in the tensor cores' own accumulator.

    Raises:
        InvalidInputError: An extent, layout, epilogue or stride that no batched GEMM has.
        UnsupportedError: A dynamic axis that strides depend on.
    """
    extents = {"B": b, "M": m, "N": n, "K": k}
    _check_extents(extents)
    left, right = _stored(layout)
    wanted = Wanted(
        dtype=dtype,
        epilogue=epilogue,
        out_dtype=out_dtype,
        dynamic=dynamic,
        strides=strides,
        deterministic=deterministic,
        scales=scales,
        alpha=alpha,
        beta=beta,
        fast_accumulate=fast_accumulate,
    )
    op = assemble("bmm", extents, {"a": "B" + left, "b": "B" + right}, "BMN", wanted)
    return _with_spec(op, builder="bmm", shape=[b, m, n, k], layout=layout)


def grouped_gemm(
    groups: int,
    m: int,
    n: int,
    k: int,
    *,
    dtype: Any = "bf16",
    layout: str = "nn",
    epilogue: Sequence[str] = (),
    out_dtype: Any = None,
    dynamic: Iterable[str] = (),
    strides: Mapping[str, Sequence[int]] | None = None,
    deterministic: bool = False,
    scales: str = "",
    alpha: float = 1.0,
    beta: float = 0.0,
    fast_accumulate: bool = False,
) -> Op:
    """``out[M, N] = epilogue(sum over K of a[M, K] * b[g, K, N])``, where g is the group that the row belongs to.

    The rows of a group follow each other, as tokens do that are sorted by expert. A further operand, ``offsets``
    (int32, one entry a group), holds the end of each group's rows: row t belongs to the first group g with
    ``t < offsets[g]``. Ends never fall, groups may be empty, and the last end is the number of rows.

    Args:
        groups: Number of groups.
        m: Rows of all groups together.
        n: Columns of the output.
        k: Length of the reduction.
        dtype: Element type of both inputs.
        layout: ``nn``, or ``nt`` where b is stored [groups, N, K].
        epilogue: Names of ``EPILOGUES``, applied in order; a bias is [groups, N].
        out_dtype: Element type of the output; if not given ``dtype``, bf16 for 8-bit floats, int32 for int8.
        dynamic: ``"M"``, if the number of rows is known only at run time.
        strides: Element strides by operand name (``a``, ``b``, ``out``) as the tensors are stored.
        deterministic: Allow only structures whose order of summation is fixed.
        scales: ``"tensor"`` (operands ``a_scale`` and ``b_scale`` of no dimension) or ``"row_column"`` (one fp32 factor
            for each row of a and for each column of b in each group), applied to the accumulator before all else.
        alpha: What the product is multiplied by, after the scales.
        beta: What the operand ``c``, of the output's shape, is multiplied by before it is added; no such operand for 0.
            ``c`` may be the output's own memory.
        fast_accumulate: Let products of 8-bit floats stay in the tensor cores' own accumulator.

    Raises:
        InvalidInputError: An extent, layout, epilogue or stride that no grouped GEMM has.
        UnsupportedError: Rows of a that are not outermost, or a dynamic axis other than M.
    """
    extents = {"G": groups, "M": m, "N": n, "K": k}
    _check_extents(extents)
    left, right = _stored(layout)
    if left != "MK":
        raise UnsupportedError(f"layout {layout} of a grouped GEMM", "store a with its rows outermost: nn or nt")
    dynamic = tuple(dynamic)
    if others := [x for x in dynamic if x in extents and x != "M"]:
        raise UnsupportedError(f"dynamic axis {others[0]!r} of a grouped GEMM", "only M may be dynamic")
    wanted = Wanted(
        dtype=dtype,
        epilogue=epilogue,
        out_dtype=out_dtype,
        dynamic=dynamic,
        strides=strides,
        deterministic=deterministic,
        scales=scales,
        alpha=alpha,
        beta=beta,
        fast_accumulate=fast_accumulate,
    )
    ragged = Ragged(rows="M", groups="G", offsets="offsets")
    op = assemble("grouped_gemm", extents, {"a": left, "b": "G" + right}, "MN", wanted, ragged)
    return _with_spec(op, builder="grouped_gemm", shape=[groups, m, n, k], layout=layout)


def contraction(
    equation: str,
    sizes: Mapping[str, int],
    *,
    dtype: Any = "bf16",
    epilogue: Sequence[str] = (),
    out_dtype: Any = None,
    dynamic: Iterable[str] = (),
    strides: Mapping[str, Sequence[int]] | None = None,
    deterministic: bool = False,
    scales: str = "",
    alpha: float = 1.0,
    beta: float = 0.0,
    fast_accumulate: bool = False,
) -> Op:
    """A product of two tensors in ``einsum`` notation, ``contraction("bmk,bkn->bmn", sizes)``.

    Args:
        equation: Two inputs and an output; each letter is an axis, letters missing in the output are summed over.
        sizes: Extent of each letter.
        dtype: Element type of both inputs.
        epilogue: Names of ``EPILOGUES``, applied in order.
        out_dtype: Element type of the output; if not given ``dtype``, bf16 for 8-bit floats, int32 for int8.
        dynamic: Letters whose extent is known only at run time.
        strides: Element strides by operand name (``a``, ``b``, ``out``).
        deterministic: Allow only structures whose order of summation is fixed.
        scales: ``"tensor"`` (operands ``a_scale`` and ``b_scale`` of no dimension) or ``"row_column"`` (one fp32 factor
            for each row of a and each column of b), applied to the accumulator before everything else.
        alpha: What the product is multiplied by, after the scales.
        beta: What the operand ``c``, of the output's shape, is multiplied by before it is added; no such operand for 0.
            ``c`` may be the output's own memory.
        fast_accumulate: Let products of 8-bit floats stay in the tensor cores' own accumulator.

    Raises:
        InvalidInputError: The equation is malformed or a size is missing or not positive.
        UnsupportedError: Not two inputs, a letter twice in one tensor, or one summed over in one input alone.
    """
    left, arrow, out = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    if not arrow or not all(t.isalpha() for t in inputs) or not (out.isalpha() or not out):
        raise InvalidInputError(f"equation {equation!r} is malformed", "write it like 'mk,kn->mn'")
    if len(inputs) != 2:
        raise UnsupportedError(f"equation {equation!r} has {len(inputs)} inputs", "contract two at a time")
    for term in (*inputs, out):
        if len(set(term)) != len(term):
            raise UnsupportedError(f"a letter stands twice in {term!r}", "take the diagonal first")
    letters = list(dict.fromkeys(out + inputs[0] + inputs[1]))
    if set(sizes) != set(letters):
        raise InvalidInputError(f"sizes are for {sorted(sizes)}, the equation has {sorted(letters)}", "give each once")
    lonely = [x for x in letters if x not in out and (x in inputs[0]) != (x in inputs[1])]
    lonely += sorted(set(out) - set(inputs[0] + inputs[1]))
    if lonely:
        raise UnsupportedError(
            f"axis {lonely[0]!r} of {equation!r} is in one tensor only",
            "sum or broadcast it outside",
        )
    extents = {x: sizes[x] for x in letters}
    _check_extents(extents)
    wanted = Wanted(
        dtype=dtype,
        epilogue=epilogue,
        out_dtype=out_dtype,
        dynamic=dynamic,
        strides=strides,
        deterministic=deterministic,
        scales=scales,
        alpha=alpha,
        beta=beta,
        fast_accumulate=fast_accumulate,
    )
    op = assemble("contraction", extents, {"a": inputs[0], "b": inputs[1]}, out, wanted)
    return _with_spec(op, builder="contraction", equation=equation, sizes=dict(extents))


class Builder(NamedTuple):
    """An operator that has a name.

    Attributes:
        make: Its builder, which takes a shape as positional arguments.
        names: Of the entries of a shape, in their order.
        optional: How many entries at the end may be left out of a shape that is given by name.
        extra: Further entries that such a shape may have, keywords of the builder.
        layout: Where none is asked for.
    """

    make: Callable[..., Op]
    names: tuple[str, ...]
    optional: int = 0
    extra: tuple[str, ...] = ()
    layout: str = "nn"


_STEPS, _MORE = ("stride", "padding"), ("dilation", "groups")
_CONV2D = ("N", "C", "H", "W", "K", "R", "S", *_STEPS)
#: Operators by the name that people use.
BUILDERS: dict[str, Builder] = {
    "gemm": Builder(gemm, ("M", "N", "K")),
    "bmm": Builder(bmm, ("B", "M", "N", "K")),
    "grouped_gemm": Builder(grouped_gemm, ("G", "M", "N", "K")),
    "conv1d": Builder(conv1d, ("N", "C", "W", "K", "S", *_STEPS), 2, _MORE, "nhwc"),
    "conv2d": Builder(conv2d, _CONV2D, 2, _MORE, "nhwc"),
    "conv2d_weight_grad": Builder(conv2d_weight_grad, _CONV2D, 2, _MORE, "nhwc"),
    "conv2d_input_grad": Builder(conv2d_input_grad, _CONV2D, 2, _MORE, "nhwc"),
    "conv_transpose2d": Builder(conv_transpose2d, _CONV2D, 2, (*_MORE, "output_padding"), "nhwc"),
    "conv3d": Builder(conv3d, ("N", "C", "D", "H", "W", "K", "T", "R", "S", *_STEPS), 2, _MORE, "nhwc"),
}

#: Sizes in a builder's order, or by name.
Shape = Sequence[int | Sequence[int]] | Mapping[str, int | Sequence[int]]


def build_named(
    name: str,
    shape: Shape,
    *,
    dtype: Any = "bf16",
    layout: str | None = None,
    epilogue: Sequence[str] = (),
    dynamic: Iterable[str] = (),
    scales: str = "",
    **extra: Any,
) -> Op:
    """The op that ``tune_op(name, shape, ...)`` and the command line mean.

    Args:
        name: Of ``BUILDERS``.
        shape: Sizes in the builder's order, or by name.
        dtype: Element type of the inputs.
        layout: Of the inputs; the operator's usual one if not given.
        epilogue: Steps on the result.
        dynamic: Axes whose extent is known only at run time.
        scales: How inputs are scaled.
        **extra: Entries of ``Builder.extra``, where the shape is in order.

    Raises:
        InvalidInputError: The name is unknown or the shape has the wrong rank or names.
    """
    if name not in BUILDERS:
        raise InvalidInputError(
            f"unknown op {name!r}", f"one of {', '.join(BUILDERS)}, or build one with contraction()"
        )
    builder = BUILDERS[name]
    names = builder.names
    if isinstance(shape, Mapping):
        needed, known = set(names[: len(names) - builder.optional]), {*names, *builder.extra}
        if not needed <= set(shape) <= known:
            may = [*names[len(names) - builder.optional :], *builder.extra] if builder.optional else []
            also = f", and if wanted {', '.join(may)}" if may else ""
            remedy = f"give {', '.join(x for x in names if x in needed)}{also}"
            raise InvalidInputError(f"shape of {name} has {sorted(shape)}", remedy)
        extra |= {x: shape[x] for x in builder.extra if x in shape}
        defaults = {"stride": 1, "padding": 0}
        shape = [shape[x] if x in shape else defaults[x] for x in names]
    if len(shape) != len(names):
        raise InvalidInputError(f"shape {tuple(shape)} of {name} has {len(shape)} entries", f"give {','.join(names)}")
    if unknown := set(extra) - set(builder.extra):
        raise InvalidInputError(f"{name} has no {sorted(unknown)[0]!r}", "leave it out")
    layout = layout or builder.layout
    return builder.make(*shape, dtype=dtype, layout=layout, epilogue=epilogue, dynamic=dynamic, scales=scales, **extra)


def build(spec: Mapping[str, Any]) -> Op:
    """The op again from ``Op.spec``, as a log keeps it.

    Raises:
        InvalidInputError: The spec names no builder of this version or holds values that its builder refuses.
    """
    known = {**{name: builder.make for name, builder in BUILDERS.items()}, "contraction": contraction}
    arguments = dict(spec)
    builder = known.get(arguments.pop("builder", None))
    if builder is None:
        raise InvalidInputError(f"unknown builder {spec.get('builder')!r}", f"one of {', '.join(known)}")
    positional = arguments.pop("shape", None)
    if positional is None:
        positional = (arguments.pop("equation", None), arguments.pop("sizes", None))
    try:
        return builder(*positional, **arguments)
    except TypeError as error:
        raise InvalidInputError(f"spec {dict(spec)} does not fit its builder: {error}", "read it from a log") from error


def _stored(layout: str) -> tuple[str, str]:
    """Axes of both inputs as they are stored, outermost first."""
    if layout not in LAYOUTS:
        raise InvalidInputError(f"unknown layout {layout!r}", f"one of {', '.join(LAYOUTS)}")
    return ("MK" if layout[0] == "n" else "KM", "KN" if layout[1] == "n" else "NK")


def _check_extents(extents: Mapping[str, int]) -> None:
    for name, value in extents.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"extent {name} is {value!r}", "give an integer")
        if value <= 0:
            raise InvalidInputError(f"extent {name} is {value}", "give a positive size")


def _with_spec(op: Op, **entries: Any) -> Op:
    op.spec.update(entries)
    return op
