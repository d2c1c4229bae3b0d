"""Builders: from the arguments that people give to an :class:`~autosched.sketches.op.Op`.

This is the only module that knows operators by name. A new operator is a function here and a line in ``BUILDERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

from autosched.errors import InvalidInputError, UnsupportedError, UsageError
from autosched.sketches.dtypes import DType, parse_dtype
from autosched.sketches.op import Affine, Axis, EpilogueStep, Op, Operand, Product

INT64_MAX = 2**63 - 1

#: Epilogue steps, computed in fp32 on the accumulator, and the operand that each one takes: ``None``, ``"row"`` (one
#: value for each index of the output's last axis) or ``"full"`` (the output's own shape).
EPILOGUES: dict[str, str | None] = {
    "bias": "row",
    "residual": "full",
    "relu": None,
    "gelu": None,
    "gelu_tanh": None,
    "silu": None,
}

LAYOUTS = ("nn", "nt", "tn", "tt")


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
        out_dtype: Element type of the output; ``dtype`` if not given.
        dynamic: Axes (``"M"``) whose extent is known only at run time; ``m`` is then the size to tune for.
        strides: Element strides by operand name (``a``, ``b``, ``out``) as the tensors are stored.
        deterministic: Allow only structures whose order of summation is fixed.

    Raises:
        InvalidInputError: An extent, layout, epilogue or stride that no GEMM has.
        UnsupportedError: A dynamic axis that strides depend on.
    """
    _check_extents({"M": m, "N": n, "K": k})
    left, right = _stored(layout)
    op = _contract(
        "gemm",
        {"M": m, "N": n, "K": k},
        (("a", left), ("b", right)),
        "MN",
        dtype=dtype,
        epilogue=epilogue,
        out_dtype=out_dtype,
        dynamic=dynamic,
        strides=strides,
        deterministic=deterministic,
    )
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
        out_dtype: Element type of the output; ``dtype`` if not given.
        dynamic: Axes (``"B"``) whose extent is known only at run time.
        strides: Element strides by operand name (``a``, ``b``, ``out``) as the tensors are stored.
        deterministic: Allow only structures whose order of summation is fixed.

    Raises:
        InvalidInputError: An extent, layout, epilogue or stride that no batched GEMM has.
        UnsupportedError: A dynamic axis that strides depend on.
    """
    extents = {"B": b, "M": m, "N": n, "K": k}
    _check_extents(extents)
    left, right = _stored(layout)
    op = _contract(
        "bmm",
        extents,
        (("a", "B" + left), ("b", "B" + right)),
        "BMN",
        dtype=dtype,
        epilogue=epilogue,
        out_dtype=out_dtype,
        dynamic=dynamic,
        strides=strides,
        deterministic=deterministic,
    )
    return _with_spec(op, builder="bmm", shape=[b, m, n, k], layout=layout)


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
) -> Op:
    """A product of two tensors in ``einsum`` notation, ``contraction("bmk,bkn->bmn", sizes)``.

    Args:
        equation: Two inputs and an output; each letter is an axis, letters missing in the output are summed over.
        sizes: Extent of each letter.
        dtype: Element type of both inputs.
        epilogue: Names of ``EPILOGUES``, applied in order.
        out_dtype: Element type of the output; ``dtype`` if not given.
        dynamic: Letters whose extent is known only at run time.
        strides: Element strides by operand name (``a``, ``b``, ``out``).
        deterministic: Allow only structures whose order of summation is fixed.

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
    op = _contract(
        "contraction",
        extents,
        (("a", inputs[0]), ("b", inputs[1])),
        out,
        dtype=dtype,
        epilogue=epilogue,
        out_dtype=out_dtype,
        dynamic=dynamic,
        strides=strides,
        deterministic=deterministic,
    )
    return _with_spec(op, builder="contraction", equation=equation, sizes=dict(extents))


#: Operators by the name that people use, with the names of the entries of a shape tuple.
BUILDERS: dict[str, tuple[Callable[..., Op], tuple[str, ...]]] = {
    "gemm": (gemm, ("M", "N", "K")),
    "bmm": (bmm, ("B", "M", "N", "K")),
}


def build_named(
    name: str,
    shape: Sequence[int] | Mapping[str, int],
    *,
    dtype: Any = "bf16",
    layout: str = "nn",
    epilogue: Sequence[str] = (),
    dynamic: Iterable[str] = (),
) -> Op:
    """The op that ``tune_op(name, shape, ...)`` and the command line mean.

    Raises:
        InvalidInputError: The name is unknown or the shape has the wrong rank or names.
    """
    if name not in BUILDERS:
        raise InvalidInputError(
            f"unknown op {name!r}", f"one of {', '.join(BUILDERS)}, or build one with contraction()"
        )
    builder, names = BUILDERS[name]
    if isinstance(shape, Mapping):
        if set(shape) != set(names):
            raise InvalidInputError(f"shape of {name} has {sorted(shape)}", f"give {', '.join(names)}")
        shape = [shape[x] for x in names]
    if len(shape) != len(names):
        raise InvalidInputError(f"shape {tuple(shape)} of {name} has {len(shape)} entries", f"give {','.join(names)}")
    return builder(*shape, dtype=dtype, layout=layout, epilogue=epilogue, dynamic=dynamic)


def build(spec: Mapping[str, Any]) -> Op:
    """The op again from ``Op.spec``, as a log keeps it.

    Raises:
        InvalidInputError: The spec names no builder of this version or holds values that its builder refuses.
    """
    known: dict[str, Callable[..., Op]] = {"gemm": gemm, "bmm": bmm, "contraction": contraction}
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


def _contract(
    name: str,
    extents: Mapping[str, int],
    inputs: tuple[tuple[str, str], ...],
    out: str,
    *,
    dtype: Any,
    epilogue: Sequence[str],
    out_dtype: Any,
    dynamic: Iterable[str],
    strides: Mapping[str, Sequence[int]] | None,
    deterministic: bool,
) -> Op:
    """A product of two tensors whose every index is one axis."""
    in_type = parse_dtype(dtype)
    out_type = in_type if out_dtype is None else parse_dtype(out_dtype)
    dynamic = tuple(dynamic)
    if unknown := set(dynamic) - set(extents):
        raise InvalidInputError(f"dynamic axis {sorted(unknown)[0]!r} is no axis", f"one of {', '.join(extents)}")
    given = dict(strides or {})
    if unknown := set(given) - {"a", "b", "out"}:
        raise InvalidInputError(f"strides for {sorted(unknown)[0]!r}", "a, b and out have strides")
    axes = tuple(Axis(x, n, "parallel" if x in out else "reduce", x in dynamic) for x, n in extents.items())

    def tensor(label: str, letters: str, kind: DType) -> Operand:
        return _tensor(label, letters, kind, extents, given.get(label), dynamic)

    operands = [tensor(label, letters, in_type) for label, letters in inputs]
    steps = []
    for step in epilogue:
        if step not in EPILOGUES:
            raise InvalidInputError(f"unknown epilogue {step!r}", f"a chain of {', '.join(EPILOGUES)}")
        takes = EPILOGUES[step]
        if takes is None:
            steps.append(EpilogueStep(step))
            continue
        label = step if step not in {o.name for o in operands} else f"{step}{len(steps)}"
        operands.append(tensor(label, out[-1:] if takes == "row" else out, in_type))
        steps.append(EpilogueStep(step, label))
    spec = {
        "dtype": in_type.name,
        **({"epilogue": list(epilogue)} if epilogue else {}),
        **({"out_dtype": out_type.name} if out_type != in_type else {}),
        **({"dynamic": list(dynamic)} if dynamic else {}),
        **({"strides": {k: list(v) for k, v in given.items()}} if given else {}),
        **({"deterministic": True} if deterministic else {}),
    }
    return Op(
        name=name,
        axes=axes,
        operands=tuple(operands),
        products=(Product(inputs[0][0], inputs[1][0]),),
        output=tensor("out", out, out_type),
        epilogue=tuple(steps),
        deterministic=deterministic,
        spec=spec,
    )


def _tensor(
    label: str,
    letters: str,
    dtype: DType,
    extents: Mapping[str, int],
    strides: Sequence[int] | None,
    dynamic: tuple[str, ...],
) -> Operand:
    shape = tuple(extents[x] for x in letters)
    if any(x in dynamic for x in letters[1:]):
        raise UnsupportedError(
            f"dynamic axis inside {label}[{letters}] makes its strides dynamic",
            "store it with the dynamic axis outermost",
        )
    dense = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    chosen = dense if strides is None else tuple(int(s) for s in strides)
    if len(chosen) != len(shape) or any(s < 0 for s in chosen):
        raise InvalidInputError(f"strides {chosen} of {label}[{letters}]", f"give {len(shape)} that are not negative")
    if label == "out" and any(s == 0 and n > 1 for s, n in zip(chosen, shape, strict=True)):
        raise InvalidInputError(f"strides {chosen} of the output overlap", "give each element a place of its own")
    operand = Operand(label, dtype, shape, chosen, tuple(Affine(((x, 1),)) for x in letters))
    if operand.span * dtype.bytes > INT64_MAX:
        raise InvalidInputError(f"{label} of shape {shape} spans more than 2^63 bytes", "use smaller extents")
    return operand


def _check_extents(extents: Mapping[str, int]) -> None:
    for name, value in extents.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"extent {name} is {value!r}", "give an integer")
        if value <= 0:
            raise InvalidInputError(f"extent {name} is {value}", "give a positive size")


def _with_spec(op: Op, **entries: Any) -> Op:
    op.spec.update(entries)
    return op
