"""Convolutions as ops: axes, affine maps and zero padding. Nothing below these builders knows that they are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from autosched.errors import InvalidInputError, UnsupportedError, UsageError
from autosched.sketches.assembly import Wanted
from autosched.sketches.op import Affine, Op
from autosched.sketches.windows import Window, Windows

#: How tensors are stored: channels innermost (torch's ``channels_last``), or outermost after the batch.
LAYOUTS = ("nhwc", "nchw")
#: One number for all spatial dimensions, or one for each.
Each = int | Sequence[int]

#: For each spatial dimension, innermost last: letter of the input's size, output's axis, kernel's axis.
_SPATIAL = (("D", "O", "T"), ("H", "P", "R"), ("W", "Q", "S"))


class Options(TypedDict, total=False):
    """The keywords that all convolutions share.

    Attributes:
        dilation: Elements of the input between neighbours of the kernel, 1 if not given.
        groups: Groups of channels; each group of outputs reads its own group of inputs. 1 if not given, as many as
            there are channels for a depthwise convolution.
        dtype: Element type of both inputs, bf16 if not given.
        layout: ``nhwc`` (channels innermost in every tensor, torch's ``channels_last``; the default) or ``nchw``.
            Shapes are torch's for both: x [N, C, ...], w [K, C / groups, ...], out [N, K, ...].
        epilogue: Names of ``EPILOGUES``, applied in order; a bias is [K].
        out_dtype: Element type of the output; if not given ``dtype``, bf16 for 8-bit floats, int32 for int8.
        dynamic: ``"N"``, if the number of images is known only at run time.
        strides: Element strides by operand name (``x``, ``w``, ``out``), one a dimension of torch's shape.
        deterministic: Allow only structures whose order of summation is fixed.
        scales: ``"tensor"``: operands ``x_scale`` and ``w_scale`` of no dimension.
        alpha: What the sum is multiplied by, after the scales.
        beta: What the operand ``c``, of the output's shape, is multiplied by before it is added.
        fast_accumulate: Let products of 8-bit floats stay in the tensor cores' own accumulator.
    """

    dilation: Each
    groups: int
    dtype: Any
    layout: str
    epilogue: Sequence[str]
    out_dtype: Any
    dynamic: Iterable[str]
    strides: Mapping[str, Sequence[int]] | None
    deterministic: bool
    scales: str
    alpha: float
    beta: float
    fast_accumulate: bool


def conv1d(
    n: int, c: int, w: int, k: int, s: int, stride: Each = 1, padding: Each = 0, **options: Unpack[Options]
) -> Op:
    """``out[N, K, Q] = epilogue(sum over C, S of x[N, C, Q * stride + S * dilation - padding] * w[K, C, S])``.

    Args:
        n: Batch.
        c: Channels of the input.
        w: Length of the input.
        k: Channels of the output.
        s: Length of the kernel.
        stride: Elements of the input between neighbours of the output.
        padding: Zeros before and after the input.
        **options: See ``Options``.

    Raises:
        InvalidInputError: A size, layout, epilogue or stride that no convolution has.
        UnsupportedError: A combination that no kernel is generated for.
    """
    return _convolution("conv1d", (n, c, w, k, s), stride, padding, options)


def conv2d(
    n: int,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    stride: Each = 1,
    padding: Each = 0,
    **options: Unpack[Options],
) -> Op:
    """``out[N, K, P, Q] = epilogue(sum over C, R, S of x[N, C, P * stride + R * dilation - padding, ...] * w)``.

    Args:
        n: Number of images.
        c: Channels of the input.
        h: Rows of the input.
        w: Columns of the input.
        k: Channels of the output.
        r: Rows of the kernel.
        s: Columns of the kernel.
        stride: Elements of the input between neighbours of the output, for both dimensions or each.
        padding: Zeros on both sides of each row and column, for both dimensions or each.
        **options: See ``Options``.

    Raises:
        InvalidInputError: A size, layout, epilogue or stride that no convolution has.
        UnsupportedError: A combination that no kernel is generated for.
    """
    return _convolution("conv2d", (n, c, h, w, k, r, s), stride, padding, options)


def conv3d(
    n: int,
    c: int,
    d: int,
    h: int,
    w: int,
    k: int,
    t: int,
    r: int,
    s: int,
    stride: Each = 1,
    padding: Each = 0,
    **options: Unpack[Options],
) -> Op:
    """``out[N, K, O, P, Q] = epilogue(sum over C, T, R, S of x[N, C, O * stride + T * dilation - padding, ...] * w)``.

    Args:
        n: Batch.
        c: Channels of the input.
        d: Depth of the input.
        h: Rows of the input.
        w: Columns of the input.
        k: Channels of the output.
        t: Depth of the kernel.
        r: Rows of the kernel.
        s: Columns of the kernel.
        stride: Elements of the input between neighbours of the output, for all dimensions or each.
        padding: Zeros on both sides of each dimension, for all or each.
        **options: See ``Options``.

    Raises:
        InvalidInputError: A size, layout, epilogue or stride that no convolution has.
        UnsupportedError: A combination that no kernel is generated for.
    """
    return _convolution("conv3d", (n, c, d, h, w, k, t, r, s), stride, padding, options)


def conv2d_weight_grad(
    n: int,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    stride: Each = 1,
    padding: Each = 0,
    **options: Unpack[Options],
) -> Op:
    """The gradient of a ``conv2d`` of this shape with respect to its kernel, from ``grad`` [N, K, P, Q] and ``x``.

    ``out[K, C, R, S] = sum over N, P, Q of grad[N, K, P, Q] * x[N, C, P * stride + R * dilation - padding, ...]``.

    Args:
        n: Number of images.
        c: Channels of the convolution's input.
        h: Rows of the convolution's input.
        w: Columns of the convolution's input.
        k: Channels of the convolution's output.
        r: Rows of the kernel.
        s: Columns of the kernel.
        stride: Of the convolution, for both dimensions or each.
        padding: Of the convolution, for both dimensions or each.
        **options: See ``Options``; strides are of ``grad``, ``x`` and ``out``.

    Raises:
        InvalidInputError: A size, layout or stride that no convolution has.
        UnsupportedError: An epilogue, scales or a dynamic axis.
    """
    return _convolution("conv2d_weight_grad", (n, c, h, w, k, r, s), stride, padding, options, _weight_grad)


def conv2d_input_grad(
    n: int,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    stride: Each = 1,
    padding: Each = 0,
    **options: Unpack[Options],
) -> Op:
    """The gradient of a ``conv2d`` of this shape with respect to its input, from ``grad`` [N, K, P, Q] and ``w``.

    ``out[N, C, H, W] = sum over K, R, S of grad[N, K, (H - R * dilation + padding) / stride, ...] * w[K, C, R, S]``,
    where ``grad`` counts as zero outside and where the division has a remainder.

    Args:
        n: Number of images.
        c: Channels of the convolution's input.
        h: Rows of the convolution's input.
        w: Columns of the convolution's input.
        k: Channels of the convolution's output.
        r: Rows of the kernel.
        s: Columns of the kernel.
        stride: Of the convolution, for both dimensions or each.
        padding: Of the convolution, for both dimensions or each.
        **options: See ``Options``; strides are of ``grad``, ``w`` and ``out``.

    Raises:
        InvalidInputError: A size, layout or stride that no convolution has.
        UnsupportedError: An epilogue, scales or a dynamic axis.
    """
    return _convolution("conv2d_input_grad", (n, c, h, w, k, r, s), stride, padding, options, _input_grad)


def conv_transpose2d(
    n: int,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    stride: Each = 1,
    padding: Each = 0,
    *,
    output_padding: Each = 0,
    **options: Unpack[Options],
) -> Op:
    """A transposed convolution: the input's gradient of the ``conv2d`` whose output is ``x``, with an epilogue.

    Tensors are those of ``torch.nn.functional.conv_transpose2d``: ``x`` [N, C, H, W], ``w`` [C, K / groups, R, S], and
    ``out`` [N, K, P, Q] with P = (H - 1) * stride - 2 * padding + dilation * (R - 1) + output_padding + 1.

    Args:
        n: Number of images.
        c: Channels of the input.
        h: Rows of the input.
        w: Columns of the input.
        k: Channels of the output.
        r: Rows of the kernel.
        s: Columns of the kernel.
        stride: Elements of the output between neighbours of the input, for both dimensions or each.
        padding: Rows and columns that are left out on both sides of the output, for both dimensions or each.
        output_padding: Rows and columns that are added at the end of the output, fewer than ``stride``.
        **options: See ``Options``.

    Raises:
        InvalidInputError: A size, layout, epilogue or stride that no transposed convolution has.
        UnsupportedError: A combination that no kernel is generated for.
    """
    strides, paddings = _each("stride", stride, 2, 1), _each("padding", padding, 2, 0)
    dilations, more = _each("dilation", options.get("dilation", 1), 2, 1), _each("output_padding", output_padding, 2, 0)
    _check({"N": n, "C": c, "H": h, "W": w, "K": k, "R": r, "S": s}, "extent")
    for added, step in zip(more, strides, strict=True):
        if added >= step:
            raise InvalidInputError(f"output_padding {added} with stride {step}", "add fewer than the stride")
    each = zip((h, w), (r, s), strides, paddings, dilations, more, strict=True)
    rows, columns = ((x - 1) * step - 2 * pad + d * (taps - 1) + a + 1 for x, taps, step, pad, d, a in each)
    if min(rows, columns) < 1:
        raise InvalidInputError(f"an output of {rows} x {columns}", "leave less of it out, or take a longer kernel")
    op = _convolution("conv_transpose2d", (n, k, rows, columns, c, r, s), stride, padding, options, _transposed)
    op.spec.update({"shape": [n, c, h, w, k, r, s, *op.spec["shape"][-2:]]})
    op.spec.update({"output_padding": _said(output_padding)} if any(more) else {})
    return op


def _forward(name: str, shape: Windows, wanted: Wanted) -> Op:
    if others := [x for x in wanted.dynamic if x != "N"]:
        raise UnsupportedError(f"dynamic axis {others[0]!r} of a convolution", "only N may be dynamic")
    axes = shape.axes("N" + shape.out[2:] + "K", "C" + shape.w[2:], wanted.dynamic)
    maps = {w.letters[0].lower(): w.read() for w in shape.windows}
    return shape.assembled(name, {"x": shape.x, "w": shape.w}, shape.out, wanted, axes, "x", maps, "K")


def _weight_grad(name: str, shape: Windows, wanted: Wanted) -> Op:
    _check_plain(name, wanted)
    axes = shape.axes(shape.w, "N" + shape.out[2:])
    maps = {w.letters[0].lower(): w.read() for w in shape.windows}
    return shape.assembled(name, {"grad": shape.out, "x": shape.x}, shape.w, wanted, axes, "x", maps, "C")


def _input_grad(name: str, shape: Windows, wanted: Wanted) -> Op:
    _check_plain(name, wanted)
    return _transposed(name, shape, wanted, "grad")


def _transposed(name: str, shape: Windows, wanted: Wanted, given: str = "x") -> Op:
    """The image from the result; ``given`` is what the result is called."""
    if wanted.dynamic:
        raise UnsupportedError(f"dynamic axes {tuple(wanted.dynamic)} of {name}", "leave them out")
    axes = shape.axes("N" + shape.x[2:].upper() + "C", "K" + shape.w[2:])
    maps = {w.letters[1]: w.reading() for w in shape.windows}
    places = {x: Affine(((x.upper(), 1),)) for x in shape.x[2:]}
    inputs = {given: shape.out, "w": shape.w}
    return shape.assembled(name, inputs, shape.x, wanted, axes, given, {**maps, **places}, "c")


def _convolution(
    name: str,
    sizes: tuple[int, ...],
    stride: Each,
    padding: Each,
    options: Options,
    make: Callable[[str, Windows, Wanted], Op] = _forward,
) -> Op:
    spatial = _SPATIAL[-(len(sizes) - 3) // 2 :]
    names = ("N", "C", *(x[0] for x in spatial), "K", *(x[2] for x in spatial))
    given: dict[str, Any] = {**options}
    if unknown := set(given) - set(Options.__annotations__):
        raise UsageError(
            f"{name} has no argument {sorted(unknown)[0]!r}", f"one of {', '.join(Options.__annotations__)}"
        )
    groups, layout = given.pop("groups", 1), given.pop("layout", LAYOUTS[0])
    dilation = given.pop("dilation", 1)
    extents = dict(zip(names, sizes, strict=True))
    _check({**extents, "groups": groups}, "extent")
    steps = zip(
        _each("stride", stride, len(spatial), 1),
        _each("padding", padding, len(spatial), 0),
        _each("dilation", dilation, len(spatial), 1),
        strict=True,
    )
    windows = tuple(Window(x, extents[x[0]], extents[x[2]], *each) for x, each in zip(spatial, steps, strict=True))
    _check_fit(extents, windows, groups, layout)
    op = make(name, Windows(extents, windows, groups, layout), Wanted(**given))
    spec = {"builder": name, "shape": [*sizes, _said(stride), _said(padding)], "layout": layout}
    spec |= {"dilation": _said(dilation)} if any(w.dilation > 1 for w in windows) else {}
    op.spec.update(spec | ({"groups": groups} if groups > 1 else {}))
    return op


def _check_plain(name: str, wanted: Wanted) -> None:
    """Refuses what gradients do not have."""
    for what, value in (("epilogue", wanted.epilogue), ("scales", wanted.scales), ("dynamic", tuple(wanted.dynamic))):
        if value:
            raise UnsupportedError(f"{what} {value!r} of {name}", "leave it out")


def _check(values: Mapping[str, Any], what: str, least: int = 1) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{what} {name} is {value!r}", "give an integer")
        if value < least:
            raise InvalidInputError(f"{what} {name} is {value}", f"give {least} or more")


def _each(name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """One value a spatial dimension."""
    values = (value,) * rank if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else (value,)
    if len(values) != rank or isinstance(value, str):
        raise InvalidInputError(f"{name} {value!r} for {rank} spatial dimensions", f"give one number, or {rank}")
    _check({f"{name}[{i}]": v for i, v in enumerate(values)}, "value", least)
    return values


def _check_fit(extents: Mapping[str, int], windows: Sequence[Window], groups: int, layout: str) -> None:
    if layout not in LAYOUTS:
        raise InvalidInputError(f"unknown layout {layout!r}", f"one of {', '.join(LAYOUTS)}")
    for name in ("C", "K"):
        if extents[name] % groups:
            raise InvalidInputError(f"{groups} groups of {name} = {extents[name]} channels", f"{name} must divide")
    for window in windows:
        if window.steps < 1:
            size, _, tap = window.letters
            raise InvalidInputError(
                f"{tap} = {window.taps} with dilation {window.dilation} is longer than {size} = {window.size} with "
                f"padding {window.padding}",
                "pad more, or take a shorter kernel",
            )


def _said(value: Each) -> int | list[int]:
    return value if isinstance(value, int) else list(value)
