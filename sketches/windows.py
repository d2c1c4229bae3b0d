"""Windows that slide over tensors: a convolution's sizes, and the axes and affine maps that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autosched.sketches.assembly import Mapped, Wanted, assemble
from autosched.sketches.dtypes import DTYPES
from autosched.sketches.op import Affine, Axis, Op, Operand


@dataclass(frozen=True, slots=True)
class Window:
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

    def read(self) -> Affine:
        """Element of the input that an output and a tap read."""
        _, out, tap = self.letters
        return Affine(((out, self.stride), (tap, self.dilation)), -self.padding)

    def reading(self) -> Affine:
        """Element of the output that reads an element of the input by a tap."""
        size, _, tap = self.letters
        return Affine(((size, 1), (tap, -self.dilation)), self.padding, self.stride)


@dataclass(frozen=True)
class Windows:
    """A convolution's sizes.

    In the letters of its dimensions, lower case is an input's size or channels, upper case an axis of the output or the
    kernel; N and K stand for both.

    Attributes:
        extents: By the letters of the shape: N, C, H, W, K, R, S.
        windows: The spatial dimensions.
        groups: Groups of channels.
        layout: ``nhwc`` or ``nchw``.
    """

    extents: Mapping[str, int]
    windows: tuple[Window, ...]
    groups: int
    layout: str

    @property
    def x(self) -> str:
        """Dimensions of the input."""
        return "Nc" + "".join(w.letters[0].lower() for w in self.windows)

    @property
    def w(self) -> str:
        """Dimensions of the kernel."""
        return "KC" + "".join(w.letters[2] for w in self.windows)

    @property
    def out(self) -> str:
        """Dimensions of the output."""
        return "NK" + "".join(w.letters[1] for w in self.windows)

    def axes(self, parallel: str, reduce: str, dynamic: Iterable[str] = ()) -> tuple[Axis, ...]:
        """The groups and the axes of these letters."""
        sizes = {x: self.extents[x] // (self.groups if x in "CK" else 1) for x in self.extents}
        sizes |= {w.letters[1]: w.steps for w in self.windows}
        grouped = (Axis("G", self.groups, "parallel"),) if self.groups > 1 else ()
        outer = (Axis(x, sizes[x], "parallel", x in tuple(dynamic)) for x in parallel)
        return (*grouped, *outer, *(Axis(x, sizes[x], "reduce") for x in reduce))

    def sizes(self) -> dict[str, int]:
        """Of every dimension."""
        found = {"N": self.extents["N"], "c": self.extents["C"], "K": self.extents["K"]}
        found["C"] = self.extents["C"] // self.groups
        for w in self.windows:
            found |= dict(zip((w.letters[0].lower(), *w.letters[1:]), (w.size, w.steps, w.taps), strict=True))
        return found

    def channels(self) -> dict[str, Affine]:
        """Maps of the dimensions that hold the channels of all groups."""
        if self.groups == 1:
            return {"c": Affine((("C", 1),)), "K": Affine((("K", 1),))}
        each = {x: self.extents[x.upper()] // self.groups for x in "cK"}
        return {x: Affine((("G", each[x]), (x.upper(), 1))) for x in each}

    def assembled(
        self, name: str, inputs: Mapping[str, str], out: str, wanted: Wanted, axes: tuple[Axis, ...], padded: str,
        maps: Mapping[str, Affine], columns: str,
    ) -> Op:  # fmt: skip
        """The op; ``padded`` is the input that ``maps`` may lead outside of."""
        order = {t: t[0] + t[2:] + t[1] for t in (self.x, self.w, self.out)} if self.layout == "nhwc" else {}
        extents, sizes = {a.name: a.extent for a in axes}, self.sizes()
        outside = any(Operand("", DTYPES["fp32"], (sizes[x],), (1,), (m,)).guarded(extents) for x, m in maps.items())
        mapped = Mapped(
            axes=axes,
            index={**self.channels(), **maps},
            order=order,
            columns=columns,
            padded=(padded,) if outside else (),
        )
        return assemble(name, sizes, inputs, out, wanted, mapped=mapped)
