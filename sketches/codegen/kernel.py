"""A kernel under construction: its text, constants and parameters, and the index arithmetic that all emitters share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from autosched.sketches.op import Op, Operand
from autosched.sketches.view import FusedAxis, MatrixView

#: Offsets beyond this many elements are computed in 64 bits.
INT32_ELEMENTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a kernel.

    Attributes:
        name: As the kernel calls it.
        signature: Triton's type (``*bf16``, ``tensordesc<bf16[128, 64]>``, ``i32``).
        host: The expression that the launcher passes.
    """

    name: str
    signature: str
    host: str

    @property
    def aligned(self) -> bool:
        """Whether it is a pointer, which the launcher passes 16-byte aligned."""
        return self.signature.startswith("*")


@dataclass(frozen=True, slots=True)
class Box:
    """A host tensor descriptor: tensor, sizes and strides as host expressions, block shape."""

    tensor: str
    sizes: tuple[str, str]
    strides: tuple[int, int]
    block: tuple[int, int]


@dataclass
class Kernel:
    """One ``@triton.jit`` function being written.

    Attributes:
        name: Its name.
        op: The op.
        view: The op's matrix view.
        knobs: Values of the schedule's knobs.
        warps: Launch option; a follow-up kernel is small and keeps the default.
        stages: Likewise.
        programs: Host expression of the number of programs, set by whoever decides it.
    """

    name: str
    op: Op
    view: MatrixView
    knobs: dict[str, int]
    warps: int = 4
    stages: int = 1
    programs: str = ""
    params: dict[str, Param] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    depth: int = 1

    # -- text -----------------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        """Adds one line at the current depth."""
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Lines added inside stand under ``header``."""
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1

    # -- names ----------------------------------------------------------------------------------------------------
    def const(self, name: str, value: int) -> str:
        """Declares a compile-time constant and returns its name."""
        assert self.constants.setdefault(name, value) == value, f"{name} means two things in {self.name}"
        return name

    def knob(self, name: str) -> str:
        """A knob of the schedule as a compile-time constant, by its name in capitals."""
        return self.const(name.upper(), self.knobs[name])

    def extent(self, group: str) -> str:
        """``M``, ``N`` or ``K``: a constant, or a run-time argument where the group is dynamic."""
        name = group.upper()
        if self.view.is_dynamic(group):
            self.params.setdefault(name, Param(name, "i32", host_extent(self.view, group)))
            return name
        return self.const(name, self.view.extent(group))

    def tiles(self, group: str, block: str) -> str:
        """Number of tiles of size ``block`` (a constant's name) along ``group``, by name."""
        name = f"TILES_{group.upper()}"
        if self.view.is_dynamic(group):
            return f"tl.cdiv({self.extent(group)}, {block})"
        return self.const(name, -(-self.view.extent(group) // self.constants[block]))

    def host_tiles(self, group: str, block: str) -> str:
        """The same number as a host expression."""
        size = self.constants[block]
        if self.view.is_dynamic(group):
            return f"-(-{host_extent(self.view, group)} // {size})"
        return str(-(-self.view.extent(group) // size))

    def pointer(self, tensor: Operand) -> str:
        """Declares ``tensor`` as a pointer argument."""
        name = f"{tensor.name}_ptr"
        self.params.setdefault(name, Param(name, f"*{tensor.dtype.triton}", tensor.name))
        return name

    def descriptor(self, tensor: Operand, groups: tuple[str, str], block: tuple[int, int]) -> str:
        """Declares a descriptor over two groups, outermost first, as an argument."""
        name = f"{tensor.name}_desc"
        sizes = (host_extent(self.view, groups[0]), host_extent(self.view, groups[1]))
        (outer,), (inner,) = self.view.group(groups[0]), self.view.group(groups[1])
        self.boxes[name] = Box(tensor.name, sizes, (outer.stride(tensor.name), inner.stride(tensor.name)), block)
        kind = f"tensordesc<{tensor.dtype.triton}[{block[0]}, {block[1]}]>"
        self.params.setdefault(name, Param(name, kind, name))
        return name

    # -- index arithmetic -----------------------------------------------------------------------------------------
    def needs_mask(self, group: str, block: int) -> bool:
        """Whether tiles of ``block`` overhang the group."""
        return self.view.is_dynamic(group) or self.view.extent(group) % block != 0

    def offset(self, tensor: Operand, group: str, index: str) -> str:
        """Element offset of ``index`` along ``group`` in ``tensor``; empty if the group does not index it."""
        wide = tensor.span > INT32_ELEMENTS
        return walk(self.view.group(group), tensor.name, f"{index}.to(tl.int64)" if wide else index)

    def batch_offset(self, tensor: Operand) -> str:
        """`` + offset`` of the batch in ``tensor``; empty where there is one batch."""
        if self.view.extent("batch") == 1:
            return ""
        offset = self.offset(tensor, "batch", "batch")
        return f" + {offset}" if offset else ""

    def bounds(self, indices: Sequence[tuple[str, str, int, str]]) -> str:
        """``mask=..., `` keyword for (group, index, block, ``[:, None]``-like slice); empty where nothing overhangs."""
        tests = [f"({i} < {self.extent(g)}){s}" for g, i, block, s in indices if self.needs_mask(g, block)]
        return " & ".join(tests)


def host_extent(view: MatrixView, group: str) -> str:
    """A group's extent as a host expression: a number, or the name of a run-time size."""
    return group.upper() if view.is_dynamic(group) else str(view.extent(group))


def walk(axes: tuple[FusedAxis, ...], tensor: str, index: str) -> str:
    """Offset of a group's ``index`` in ``tensor``: a product where one stride describes it, else a sum over axes."""
    if len(axes) == 1:
        return scaled(index, axes[0].stride(tensor))
    terms = []
    inner = 1
    for position, axis in reversed(list(enumerate(axes))):
        part = f"{index} // {inner}" if inner > 1 else index
        if position > 0:
            part = f"({part}) % {axis.extent}"
        term = scaled(f"({part})", axis.stride(tensor))
        if term:
            terms.append(term)
        inner *= axis.extent
    return f"({' + '.join(reversed(terms))})" if terms else ""


def scaled(index: str, stride: int) -> str:
    """``index * stride``, without the factor 1, empty for the stride 0."""
    if stride == 0:
        return ""
    return index if stride == 1 else f"{index} * {stride}"


def load(pointers: str, bounds: str) -> str:
    """A load, zero outside ``bounds``; unmasked where these are empty."""
    return f"tl.load({pointers}" + (f", mask={bounds}, other=0.0)" if bounds else ")")


def store(pointers: str, value: str, bounds: str) -> str:
    """A store inside ``bounds``; unmasked where these are empty."""
    return f"tl.store({pointers}, {value}" + (f", mask={bounds})" if bounds else ")")


def along(expression: str, axis: str) -> str:
    """``expression`` spread along one dimension of a tile: ``rows[:, None]``, ``(rows * 4096)[:, None]``."""
    return f"{expression}{axis}" if expression.isidentifier() else f"({expression}){axis}"
