"""Convolutions in the vendor library: which ops are one, read off their index maps, and the call that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosched.sketches.op import Affine, Op, Operand, Product

if TYPE_CHECKING:
    import torch

Call = Callable[["Mapping[str, torch.Tensor]"], "torch.Tensor"]
"""Called with the tensors of a product by name, and a bias as ``bias`` if the library is to add one."""


@dataclass(frozen=True)
class Convolution:
    """``result = image * kernel`` in torch's order of dimensions: batch, channels, spatial ones.

    Attributes:
        image: [N, C, ...].
        kernel: [K, C / groups, ...].
        result: [N, K, ...].
        computed: Which of the three the op computes from the other two.
        stride: Elements of the image between neighbours of the result, one a spatial dimension.
        padding: Zeros on both sides of the image.
        dilation: Elements of the image between neighbours of the kernel.
        groups: Groups of channels.
        features: The axes of the result's channels, which a bias is indexed by.
    """

    image: Operand
    kernel: Operand
    result: Operand
    computed: Operand
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    features: frozenset[str]

    @property
    def takes_bias(self) -> bool:
        """Whether the library can add a bias on the way."""
        return self.computed is self.result

    def call(self) -> Call:
        """The library's call; it allocates the result, in the memory format that the library chooses."""
        import torch

        settings = (self.stride, self.padding, self.dilation, False, (0,) * len(self.stride), self.groups)
        aten = torch.ops.aten

        def forward(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
            image, kernel = tensors[self.image.name], tensors[self.kernel.name]
            result: torch.Tensor = aten.convolution(image, kernel, tensors.get("bias"), *settings)
            return result

        def backward(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
            wanted = [self.computed is self.image, self.computed is self.kernel, False]
            given = tensors[self.result.name]
            # only shape, type and memory format of what is computed matter
            image, kernel = (
                tensors[o.name]
                if o.name in tensors
                else torch.empty_strided(o.shape, o.strides, dtype=given.dtype, device=given.device)
                for o in (self.image, self.kernel)
            )
            gradients = aten.convolution_backward(given, image, kernel, None, *settings, wanted)
            gradient: torch.Tensor = gradients[0] if wanted[0] else gradients[1]
            return gradient

        return forward if self.computed is self.result else backward


@dataclass(frozen=True)
class _Window:
    """One spatial dimension: the axes of image, result and kernel, and how they are related."""

    image: str | None
    result: str
    tap: str
    stride: int
    dilation: int
    padding: int


def convolution(op: Op, product: Product) -> Convolution | None:
    """The convolution that a product is, or ``None``.

    One of its tensors is read by maps of two axes: the image, by ``stride * p + dilation * r - padding``, or the result
    in its gradient, by ``(h - dilation * r + padding) / stride``. The image's first dimension is the batch, and its
    second one the channels, which tell the kernel from the result.
    """
    tensors = (op.operand(product.left), op.operand(product.right), op.output)
    shared = tensors[0].axes & tensors[1].axes & tensors[2].axes
    read = [t for t in tensors if any(_is_window(op, expr, shared) for expr in t.index)]
    if len(read) != 1 or len(read[0].index) < 3 or product.factors or op.ragged:
        return None
    mapped = read[0]
    windows = [_window(expr) for expr in mapped.index[2:]]
    if not all(_is_window(op, expr, shared) for expr in mapped.index[2:]) or None in windows:
        return None
    found = [w for w in windows if w is not None]
    others = [t for t in tensors if t is not mapped]
    batch, channels = (mapped.index[i].axes for i in (0, 1))
    by_batch = [t for t in others if set(batch) & t.axes]
    by_channel = [t for t in others if (set(channels) - shared) & t.axes]
    if len(by_batch) != 1 or len(by_channel) != 1 or by_batch == by_channel:
        return None
    other, kernel = by_batch[0], by_channel[0]
    image, result = (mapped, other) if found[0].image is None else (other, mapped)
    if result is mapped and op.output is not image:
        return None
    groups = op.extents[next(iter(shared))] if shared else 1
    if len(shared) > 1 or not _in_order(op, image, kernel, result, found, shared):
        return None
    settings = ([getattr(w, name) for w in found] for name in ("stride", "padding", "dilation"))
    stride, padding, dilation = map(tuple, settings)
    features = frozenset(result.index[1].axes)
    return Convolution(image, kernel, result, op.output, stride, padding, dilation, groups, features)


def _is_window(op: Op, expr: Affine, shared: frozenset[str]) -> bool:
    """Whether a map is of two axes of which none indexes all tensors."""
    return len(expr.terms) == 2 and not set(expr.axes) & shared


def _window(expr: Affine) -> _Window | None:
    (first, scale), (second, other) = expr.terms
    if expr.divisor == 1 and scale > 0 and other > 0:
        return _Window(None, first, second, scale, other, -expr.const)
    if scale == 1 and other < 0:
        return _Window(first, "", second, expr.divisor, -other, expr.const)
    return None


def _in_order(
    op: Op, image: Operand, kernel: Operand, result: Operand, windows: Sequence[_Window], shared: frozenset[str]
) -> bool:
    """Whether the tensors have torch's dimensions, each whole, and the windows' axes stand where they belong."""
    ranks = {len(t.index) for t in (image, kernel, result)}
    if ranks != {2 + len(windows)}:
        return False
    group = tuple(shared)
    channels, features = (t.index[1].axes[len(group) :] for t in (image, result))
    pairs = [
        (image.index[0].axes, result.index[0].axes),
        (image.index[1].axes, (*group, *kernel.index[1].axes)),
        (result.index[1].axes, kernel.index[0].axes),
    ]
    alike = all(a == b for a, b in pairs) and len(channels) == len(features) == 1
    for place, window in enumerate(windows, 2):
        alike &= kernel.index[place].axes == (window.tap,)
        moved = (window.image,) if window.image else (window.result,)
        alike &= (image if window.image else result).index[place].axes == moved
    return alike and all(window.padding >= 0 for window in windows)
