"""Convolutions as ops: axes, affine maps and zero padding. Nothing below these builders knows that they are any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from autosched.errors import InvalidInputError, UnsupportedError, UsageError
from autosched.sketches.assembly import Mapped, Wanted, assemble
from autosched.sketches.op import Affine, Axis, Op

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


@dataclass(frozen=True, slots=True)
class _Window:
    """One spatial dimension.

    Attributes:
        letters: Of the input's size, the output's axis and the kernel's axis.
        size: Elements of the input.
        taps: Elements of the kernel.
        stride: Elements of the input between neighbours of the output.
        padding: Zeros on both sides.
        dilation: Elements of the input between neighbours of the kernel.
    """

    letters: tuple[str, str, str]
    size: int
    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def steps(self) -> int:
        """Elements of the output."""
        return (self.size + 2 * self.padding - self.dilation * (self.taps - 1) - 1) // self.stride + 1

    def index(self) -> Affine:
        """Element of the input that an output and a tap read."""
        _, out, tap = self.letters
        return Affine(((out, self.stride), (tap, self.dilation)), -self.padding)

    @property
    def padded(self) -> bool:
        """Whether some output reads outside the input."""
        last = (self.steps - 1) * self.stride + (self.taps - 1) * self.dilation - self.padding
        return self.padding > 0 or last >= self.size


def _convolution(name: str, sizes: tuple[int, ...], stride: Each, padding: Each, options: Options) -> Op:
    spatial = _SPATIAL[-(len(sizes) - 3) // 2 :]
    rank = len(spatial)
    names = ("N", "C", *(x[0] for x in spatial), "K", *(x[2] for x in spatial))
    given: dict[str, Any] = {**options}
    groups, layout = given.pop("groups", 1), given.pop("layout", LAYOUTS[0])
    dilation = given.pop("dilation", 1)
    extents = dict(zip(names, sizes, strict=True))
    _check({**extents, "groups": groups}, "extent")
    windows = [
        _Window(letters, extents[letters[0]], extents[letters[2]], *steps)
        for letters, *steps in zip(
            spatial,
            _each("stride", stride, rank, 1),
            _each("padding", padding, rank, 0),
            _each("dilation", dilation, rank, 1),
            strict=True,
        )
    ]
    _check_fit(extents, windows, groups, layout)
    wanted = Wanted(**given)
    if others := [x for x in wanted.dynamic if x != "N"]:
        raise UnsupportedError(f"dynamic axis {others[0]!r} of a convolution", "only N may be dynamic")
    op = _assembled(name, extents, windows, groups, layout, wanted)
    spec = {"builder": name, "shape": [*sizes, _said(stride), _said(padding)], "layout": layout}
    spec |= {"dilation": _said(dilation)} if any(w.dilation > 1 for w in windows) else {}
    op.spec.update(spec | ({"groups": groups} if groups > 1 else {}))
    return op


def _assembled(
    name: str, extents: Mapping[str, int], windows: Sequence[_Window], groups: int, layout: str, wanted: Wanted
) -> Op:
    """The op: a letter in lower case is a dimension of the input, in upper case one of the kernel or the output."""
    c, k = extents["C"] // groups, extents["K"] // groups
    ins, outs, taps = ("".join(w.letters[i] for w in windows) for i in range(3))
    axes = [Axis("G", groups, "parallel")] if groups > 1 else []
    axes += [Axis("N", extents["N"], "parallel", "N" in tuple(wanted.dynamic))]
    axes += [Axis(w.letters[1], w.steps, "parallel") for w in windows]
    axes += [Axis("K", k, "parallel"), Axis("C", c, "reduce")]
    axes += [Axis(w.letters[2], w.taps, "reduce") for w in windows]
    index = {w.letters[0].lower(): w.index() for w in windows}
    index["c"] = Affine((("G", c), ("C", 1))) if groups > 1 else Affine((("C", 1),))
    index["K"] = Affine((("G", k), ("K", 1))) if groups > 1 else Affine((("K", 1),))
    dims = {"N": extents["N"], "c": extents["C"], "K": extents["K"], "C": c}
    dims |= {w.letters[0].lower(): w.size for w in windows}
    dims |= {w.letters[1]: w.steps for w in windows} | {w.letters[2]: w.taps for w in windows}
    x, w, out = f"Nc{ins.lower()}", f"KC{taps}", f"NK{outs}"
    order = {t: t[0] + t[2:] + t[1] for t in (x, w, out)} if layout == "nhwc" else {}
    padded = ("x",) if any(w.padded for w in windows) else ()
    mapped = Mapped(axes=tuple(axes), index=index, order=order, columns="K", padded=padded)
    return assemble(name, dims, {"x": x, "w": w}, out, wanted, mapped=mapped)


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


def _check_fit(extents: Mapping[str, int], windows: Sequence[_Window], groups: int, layout: str) -> None:
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
