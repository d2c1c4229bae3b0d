"""Prepared ops: the same over padded copies of its inputs, in which windows of few channels are runs of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from autosched.sketches.op import Affine, Axis, Op, Operand, dense_strides

#: Bytes of the longest load, and what every stride of a descriptor is a multiple of.
WIDEST = 16
#: Elements that offsets of 32 bits reach, those of the last program beyond the copy included.
LARGEST_COPY = 2**31 - 2**12


@dataclass(frozen=True, slots=True)
class PaddedCopy:
    """A dense copy of an operand, with zeros where it reaches beyond it.

    Attributes:
        operand: Its name.
        dims: The operand's dimension of each of the copy's, outermost first.
        first: The operand's index at the copy's index 0, by dimension of the copy; negative where zeros come before.
        shape: Extents of the copy.
    """

    operand: str
    dims: tuple[int, ...]
    first: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension of the copy."""
        return dense_strides(self.shape)


@dataclass(frozen=True)
class Prepared:
    """An op written otherwise: over other axes, or over copies that kernels before make.

    Attributes:
        tag: What was done, for the names of sketches.
        op: The same products over operands of the same names, some of which are copies; it has axes of its own.
        copies: How each is made.
    """

    tag: str
    op: Op
    copies: tuple[PaddedCopy, ...]


@dataclass(frozen=True, slots=True)
class _Window:
    """Where an operand's windows lie.

    Attributes:
        outer: Its dimensions but for the last two, in the order of memory.
        across: The dimension of pixels that a window runs along.
        inner: The dimension of its channels.
        walked: The axis that moves the window, by ``step`` pixels.
        tap: The axis that walks its pixels.
        channel: The axis that walks their channels.
        channels: Channels of a pixel of the copy.
        run: Elements of a window of the copy.
    """

    outer: tuple[int, ...]
    across: int
    inner: int
    walked: str
    step: int
    tap: str
    channel: str
    channels: int
    run: int

    @property
    def taps(self) -> int:
        """Pixels of a window of the copy."""
        return self.run // self.channels

    @property
    def axis(self) -> Axis:
        """The axis that walks a window of the copy."""
        return Axis(f"{self.tap}{self.channel}", self.run, "reduce")


def windowed(op: Op) -> Prepared | None:
    """``op`` over a copy in which a window and its few channels are one run of memory; ``None`` where there is none.

    Where pixels have fewer than 16 bytes of channels and these are innermost, the window of an index along the
    innermost dimension of pixels is a run of its taps' channels. So they are in the copy, whatever the order in the
    image. It has zeros around the image, so that nothing lies outside, and channels are padded until every window
    begins at a multiple of 16 bytes. The other operand's copy has zeros for the channels and taps that were added. Runs
    are padded to powers of two. What is longer than the row of windows (the pixels that a kernel's gradient sums over)
    is none.
    """
    if len(op.products) != 1 or op.factors or op.ragged is not None or any(axis.dynamic for axis in op.axes):
        return None
    (product,) = op.products
    for names in ((product.left, product.right), (product.right, product.left)):
        image, kernel = (op.operand(name) for name in names)
        window = _window(op, image, kernel)
        if window is not None:
            return _prepared(op, image, kernel, window)
    return None


def _prepared(op: Op, image: Operand, kernel: Operand, window: _Window) -> Prepared | None:
    padded, windows = _image(op, image, kernel, window)
    packed, runs = _kernel(op, kernel, window)
    if any(prod(copy.shape) > LARGEST_COPY for copy in (padded, packed)):
        return None
    changed = {image.name: windows, kernel.name: runs}
    axes = tuple(axis for axis in op.axes if axis.name not in (window.tap, window.channel))
    operands = tuple(changed.get(o.name, o) for o in op.operands)
    return Prepared("window", replace(op, axes=(*axes, window.axis), operands=operands), (padded, packed))


def _image(op: Op, image: Operand, kernel: Operand, window: _Window) -> tuple[PaddedCopy, Operand]:
    """The copy of the image, and its windows: along the dimension across, they begin at every step."""
    first, sizes, index = [], [], []
    for i in window.outer:
        expr = image.index[i]
        low, high = expr.reach(op.extents)
        step = next((c for name, c in expr.terms if name not in kernel.axes and c > 1), 1)
        first.append(low)
        sizes.append(-(-(high - low + 1) // step) * step)  # a descriptor takes rows apart by their step
        index.append(replace(expr, const=expr.const - low))
    low, _ = image.index[window.across].reach(op.extents)
    count = op.extents[window.walked]
    row = window.step * (count - 1) + window.taps
    row += -row % max(1, WIDEST // (window.channels * image.dtype.bytes))
    dims = (*window.outer, window.across, window.inner)
    copy = PaddedCopy(image.name, dims, (*first, low, 0), (*sizes, row, window.channels))
    return copy, replace(
        image,
        shape=(*sizes, count, window.run),
        strides=(*copy.strides[:-2], window.step * window.channels, 1),
        index=(*index, _alone(window.walked), _alone(window.axis.name)),
        zero_padded=False,
    )


def _kernel(op: Op, kernel: Operand, window: _Window) -> tuple[PaddedCopy, Operand]:
    """The copy of the other operand: its runs are innermost, what else is summed over before them."""
    places = {expr.axes[0]: i for i, expr in enumerate(kernel.index)}
    rest = [name for name in places if name not in (window.tap, window.channel)]
    rest.sort(key=lambda name: (op.axis(name).kind == "reduce", -kernel.stride_of(name)))
    dims = tuple(places[name] for name in (*rest, window.tap, window.channel))
    shape = tuple(op.extents[name] for name in rest)
    copy = PaddedCopy(kernel.name, dims, (0,) * len(dims), (*shape, window.taps, window.channels))
    return copy, replace(
        kernel,
        shape=(*shape, window.run),
        strides=(*copy.strides[:-2], 1),
        index=tuple(_alone(name) for name in (*rest, window.axis.name)),
    )


def _window(op: Op, image: Operand, kernel: Operand) -> _Window | None:
    """The windows of ``image``, if it has few channels and each is a run of a kernel that is indexed by single axes."""
    extents, size = op.extents, image.dtype.bytes
    if len(image.shape) < 3 or any(expr.divisor > 1 for expr in image.index):
        return None
    whole = {expr.single: n for expr, n in zip(kernel.index, kernel.shape, strict=True)}
    if len(whole) < len(kernel.index) or any(name is None or extents[name] != n for name, n in whole.items()):
        return None
    summed = {name for name in image.axes & kernel.axes if op.axis(name).kind == "reduce"}
    small = [i for i, expr in enumerate(image.index) if expr.single in summed and image.shape[i] * size < WIDEST]
    if len(small) != 1:
        return None
    (inner,) = small
    channel = image.index[inner].axes[0]
    *outer, across = sorted(set(range(len(image.shape))) - {inner}, key=lambda i: (-image.strides[i], i))
    shifting = [(name, c) for name, c in image.index[across].terms if name in summed]
    walking = [(name, c) for name, c in image.index[across].terms if name not in summed]
    if len(shifting) != 1 or len(walking) != 1:
        return None
    (walked, step), (tap, shift) = walking[0], shifting[0]
    alone = not {channel, walked, tap} & {name for i in outer for name in image.index[i].axes}
    alone = alone and walked not in kernel.axes and extents[channel] == image.shape[inner] and tap != channel
    if not alone or shift != 1 or step < 1 or not 1 < extents[tap] <= extents[walked]:
        return None
    channels = WIDEST
    while channels > 1 and channels // 2 >= extents[channel] and step * (channels // 2) * size % WIDEST == 0:
        channels //= 2
    run = max(32 if size == 1 else 16, 1 << (extents[tap] * channels - 1).bit_length())
    return _Window(tuple(outer), across, inner, walked, step, tap, channel, channels, run)


def _alone(axis: str) -> Affine:
    return Affine(((axis, 1),))
