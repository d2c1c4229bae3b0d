"""A kernel under construction: its text, constants and parameters, and the index arithmetic that all emitters share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, log2, prod

from autosched.sketches.box import ImageMap, image_box
from autosched.sketches.op import Op, Operand
from autosched.sketches.view import FusedAxis, MatrixView, run_length

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
class Span:
    """A piece of the tile's columns that has an accumulator of its own: a power of two wide.

    Attributes:
        suffix: What the names of its values end in; empty where the tile has one piece.
        start: Its first column in the tile.
        width: Its columns.
    """

    suffix: str
    start: int
    width: int


#: The whole tile: what an operand without the columns is loaded as.
WHOLE = Span("", 0, 0)


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the workspace.

    Attributes:
        name: Of the variable that the launcher passes; ``workspace`` for partial sums.
        elements: Its elements, as a host expression.
        count: The same at the tuned size.
        size: Bytes of an element.
        zeroed: Whether it must be zero before a launch, which leaves it zero.
    """

    name: str
    elements: str
    count: int
    size: int
    zeroed: bool


@dataclass(frozen=True, slots=True)
class Box:
    """A host tensor descriptor: tensor, sizes and strides as host expressions, block shape."""

    tensor: str
    sizes: tuple[str, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]


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
        before: Kernels that must run before this one.
        regions: Parts of the workspace that it declared.
        dependent: Whether it starts before the kernel ahead of it has ended, and waits for that itself.
        maxnreg: Registers a thread at most; 0 for the compiler's choice.
        shows: What its compiled form must show, or what was asked for took no effect (see ``KernelSpec.shows``).
        partial: Which tiles a program adds only a part to: ``none``, ``all`` or ``some``; set by the Work node.
        first_row: Name of the tile's first row where tiles do not begin at multiples of their size; set by the Work
            node.
        row_limit: Name of the row at which such a tile ends, if that is earlier than its size says.
        boxed: Axes of the columns along which a tile is a box, outermost first; none where it is a run of indices.
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
    before: list[Kernel] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    dependent: bool = False
    maxnreg: int = 0
    shows: tuple[str, ...] = ()
    partial: str = "none"
    first_row: str = ""
    row_limit: str = ""
    boxed: tuple[str, ...] = ()

    # -- text -----------------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        """Adds one line at the current depth."""
        self.lines.append("    " * self.depth + text)

    def first(self, text: str) -> None:
        """Adds one line before all others."""
        self.lines.insert(0, "    " + text)

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
            self.params.setdefault(name, Param(name, "i32", host_extent(self.op, self.view, group)))
            return name
        return self.const(name, self.view.extent(group))

    def tiles(self, group: str, block: str) -> str:
        """Number of tiles of size ``block`` (a constant's name) along ``group``, by name."""
        name = f"TILES_{group.upper()}"
        if self.view.is_dynamic(group):
            return f"tl.cdiv({self.extent(group)}, {block})"
        return self.const(name, self._tiles(group, self.constants[block]))

    def host_tiles(self, group: str, block: str) -> str:
        """The same number as a host expression."""
        size = self.constants[block]
        if self.view.is_dynamic(group):
            return f"-(-{host_extent(self.op, self.view, group)} // {size})"
        return str(self._tiles(group, size))

    def all_tiles(self) -> str:
        """Number of tiles of all batches, as the kernel computes it."""
        m, n = self.tiles("m", self.knob("block_m")), self.tiles("n", self.knob("block_n"))
        return f"{m} * {n}" + (f" * {self.batches()}" if self.batched else "")

    def all_host_tiles(self) -> str:
        """The same number as a host expression."""
        m, n = self.host_tiles("m", self.knob("block_m")), self.host_tiles("n", self.knob("block_n"))
        return f"{m} * {n}" + (f" * {self.host_batches()}" if self.batched else "")

    def tile_count(self) -> int:
        """The same number at the tuned size."""
        return self.view.extent("batch") * prod(self._tiles(g, self.knobs[f"block_{g}"]) for g in "mn")

    def _tiles(self, group: str, block: int) -> int:
        """Number of tiles along ``group`` at the tuned size."""
        if group == "n" and self.boxed:
            return prod(self.box_counts)
        return -(-self.view.extent(group) // block)

    @property
    def box_sides(self) -> tuple[int, ...]:
        """Sides of a tile that is a box, one an axis of ``boxed``."""
        return image_box(len(self.boxed), *(self.knobs[x] for x in ("block_n", "box_h", "box_w")))

    @property
    def box_counts(self) -> tuple[int, ...]:
        """Boxes along each axis of ``boxed``."""
        return tuple(-(-self.op.extents[x] // side) for x, side in zip(self.boxed, self.box_sides, strict=True))

    def emit_corner(self, name: str) -> None:
        """Emits the first index of the tile's box along each axis of ``boxed``, called ``{name}_{axis}``."""
        for axis, place, side in zip(self.boxed, digits("tile_n", self.box_counts), self.box_sides, strict=True):
            self.line(f"{name}_{axis} = {place}" + (f" * {side}" if side > 1 else ""))

    def emit_columns(self, start: str, first: int, width: int) -> None:
        """Emits ``columns``, the indices of a piece of the tile along the group; outside a box they are at its end.

        Args:
            start: The first one, where the tile is a run of indices.
            first: Its place in the tile.
            width: How many.
        """
        if not self.boxed:
            self.line(f"columns = {start} + tl.arange(0, {width})")
            return
        self.line(f"lane = {f'{first} + ' if first else ''}tl.arange(0, {width})")
        self.emit_corner("corner")
        flat, inside = "", []
        for axis, place, side in zip(self.boxed, digits("lane", self.box_sides), self.box_sides, strict=True):
            self.line(f"at_{axis} = corner_{axis}" + (f" + {place}" if side > 1 else ""))
            if self.op.extents[axis] % side:
                inside.append(f"(at_{axis} < {self.op.extents[axis]})")
        for axis in self.boxed:
            flat = f"({flat}) * {self.op.extents[axis]} + at_{axis}" if flat else f"at_{axis}"
        if inside:
            flat = f"tl.where({' & '.join(inside)}, {flat}, {self.extent('n')})"
        self.line(f"columns = {flat}")

    def workspace(self) -> str:
        """Declares the workspace of fp32 sums as a pointer argument."""
        self.params.setdefault("workspace_ptr", Param("workspace_ptr", "*fp32", "workspace"))
        return "workspace_ptr"

    def pointer(self, tensor: Operand) -> str:
        """Declares ``tensor`` as a pointer argument."""
        name = f"{tensor.name}_ptr"
        self.params.setdefault(name, Param(name, f"*{tensor.dtype.triton}", self.host(tensor)))
        return name

    def host(self, tensor: Operand) -> str:
        """The launcher's variable that holds ``tensor``, or the copy that is read in its place."""
        return tensor.name + ("_copy" if tensor.name in self.view.copies else "")

    def descriptor(self, name: str, tensor: Operand, box: Box) -> str:
        """Declares a descriptor of ``tensor``'s element type as an argument."""
        self.boxes[name] = box
        kind = f"tensordesc<{tensor.dtype.triton}[{', '.join(map(str, box.block))}]>"
        self.params.setdefault(name, Param(name, kind, name))
        return name

    def box(self, tensor: Operand, groups: tuple[str, str], block: tuple[int, int], folded: bool) -> Box:
        """A descriptor over two groups, outermost first; ``folded`` says that a batch's matrices follow each other."""
        outer, inner = (host_extent(self.op, self.view, g) for g in groups)
        if folded:
            outer = f"{self.host_batches()} * {outer}"
        strides = [self.view.walk(g, tensor.name)[0].stride(tensor.name) for g in groups]
        return Box(self.host(tensor), (outer, inner), (strides[0], strides[1]), block)

    def image(self, tensor: Operand, image: ImageMap, lengths: Mapping[str, int]) -> Box:
        """A descriptor of an image; a box has these lengths along the axes named, and one element along others."""
        block = tuple(
            next((lengths[x] for x in tensor.index[side.index].axes if x in lengths and not side.low), 1)
            for side in image.sides
        )
        return Box(self.host(tensor), tuple(map(str, image.sizes(tensor))), image.strides(tensor), block)

    # -- shape of the tile ----------------------------------------------------------------------------------------
    @property
    def spans(self) -> tuple[Span, ...]:
        """The tile's columns as pieces of powers of two, widest first."""
        width = self.knobs["block_n"]
        widths = [1 << i for i in reversed(range(width.bit_length())) if width >> i & 1]
        if len(widths) == 1:
            return (Span("", 0, width),)
        return tuple(Span(str(i), sum(widths[:i]), w) for i, w in enumerate(widths))

    def place(self, group: str, span: Span) -> str:
        """First index of the tile along ``group``, of the piece ``span`` along the columns."""
        if group == "m" and self.first_row:
            return self.first_row
        start = f"tile_{group} * {self.knob(f'block_{group}')}"
        return f"{start} + {span.start}" if group == "n" and span.start else start

    def width(self, group: str, span: Span) -> str:
        """Length of the tile along ``group``, of the piece ``span`` along the columns."""
        name = self.knob(f"block_{group}")
        return str(span.width) if group == "n" and span.suffix else name

    # -- batches --------------------------------------------------------------------------------------------------
    @property
    def batched(self) -> bool:
        """Whether there may be more than one matrix."""
        return self.view.extent("batch") > 1 or self.view.is_dynamic("batch")

    def batches(self) -> str:
        """Number of matrices: a number, or a run-time argument."""
        return self.extent("batch") if self.view.is_dynamic("batch") else str(self.view.extent("batch"))

    def host_batches(self) -> str:
        """The same as a host expression."""
        return host_extent(self.op, self.view, "batch")

    # -- index arithmetic -----------------------------------------------------------------------------------------
    def needs_mask(self, group: str, block: int) -> bool:
        """Whether tiles of ``block`` overhang the group."""
        if group == "m" and self.row_limit:
            return True
        if group == "n" and self.boxed:
            return any(self.op.extents[x] % side for x, side in zip(self.boxed, self.box_sides, strict=True))
        return self.view.is_dynamic(group) or self.view.extent(group) % block != 0

    def limit(self, group: str) -> str:
        """What the tile's indices along ``group`` stay below."""
        return self.row_limit if group == "m" and self.row_limit else self.extent(group)

    def offset(self, tensor: Operand, group: str, index: str) -> str:
        """Element offset of ``index`` along ``group`` in ``tensor``; empty if the group does not index it."""
        wide = tensor.span > INT32_ELEMENTS or self.view.is_dynamic(group)  # a dynamic group may grow
        return walk(self.view.walk(group, tensor.name), tensor.name, f"{index}.to(tl.int64)" if wide else index)

    def indexes(self, tensor: Operand, group: str) -> bool:
        """Whether any axis of the group indexes ``tensor``."""
        return any(name in tensor.axes for fused in self.view.group(group) for name in fused.axes)

    def coarse_offset(self, tensor: Operand, group: str, index: str) -> str:
        """Element offset of ``index`` in a factor, which may be indexed by some of the group's axes alone.

        ``index`` is a name, or ``k0``, which the interpreter has as a number. Empty if no axis indexes the factor.
        """
        if not self.indexes(tensor, group):
            return ""
        extents = self.op.extents
        names = [name for fused in self.view.group(group) for name in fused.axes]
        while names[-1] not in tensor.axes:
            names.pop()
        reach = sum((extents[name] - 1) * tensor.stride_of(name) for name in names)
        if reach > INT32_ELEMENTS or self.view.is_dynamic(group):
            index = f"tl.full((), {index}, tl.int64)" if group == "k" else f"{index}.to(tl.int64)"
        run = run_length(self.op, self.view, group, (tensor.name,))
        index = f"{index} // {run}" if run > 1 else index
        axes = [FusedAxis((name,), extents[name], ((tensor.name, tensor.stride_of(name)),)) for name in names]
        return walk(tuple(axes), tensor.name, f"({index})" if len(axes) > 1 else index)

    def batch_offset(self, tensor: Operand) -> str:
        """`` + offset`` of the batch in ``tensor``; empty where there is one batch."""
        if not self.batched:
            return ""
        offset = self.offset(tensor, "batch", "batch")
        return f" + {offset}" if offset else ""

    def base(self, tensor: Operand) -> str:
        """Pointer to a tensor's element at index 0 of every axis but the batch's."""
        return plus(self.pointer(tensor), tensor.start) + self.batch_offset(tensor)

    def bounds(self, indices: Sequence[tuple[str, str, int, str]]) -> str:
        """``mask=..., `` keyword for (group, index, block, ``[:, None]``-like slice); empty where nothing overhangs."""
        tests = [f"({i} < {self.limit(g)}){s}" for g, i, block, s in indices if self.needs_mask(g, block)]
        return " & ".join(tests)


def host_extent(op: Op, view: MatrixView, group: str) -> str:
    """A group's extent as a host expression: a number, or a product with the names of run-time sizes."""
    axes = [op.axis(name) for fused in view.group(group) for name in fused.axes]
    fixed = prod(a.extent for a in axes if not a.dynamic)
    factors = [a.name.upper() for a in axes if a.dynamic] + ([str(fixed)] if fixed > 1 else [])
    return " * ".join(factors) or "1"


def power(extent: int) -> int:
    """The first power of two that holds ``extent``."""
    return 1 << ceil(log2(max(extent, 1)))


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


def digits(flat: str, extents: Sequence[int]) -> list[str]:
    """The index along each of several axes, outermost first, from the index ``flat`` of all of them."""
    found, inner = [], 1
    for place, extent in reversed(list(enumerate(extents))):
        part = f"{flat} // {inner}" if inner > 1 else flat
        found.append(part + (f" % {extent}" if place else ""))
        inner *= extent
    return found[::-1]


def plus(text: str, number: int) -> str:
    """A sum of terms, of which there may be none, and a number."""
    if not text:
        return str(number)
    return text + (f" {'+' if number > 0 else '-'} {abs(number)}" if number else "")


def scaled(index: str, stride: int) -> str:
    """``index * stride``, without the factor 1, empty for the stride 0."""
    if stride == 0:
        return ""
    return index if stride == 1 else f"{index} * {stride}"


def load(pointers: str, bounds: str, options: str = "") -> str:
    """A load, zero outside ``bounds``; unmasked where these are empty. ``options`` are further keywords."""
    return f"tl.load({pointers}" + (f", mask={bounds}, other=0.0" if bounds else "") + options + ")"


def store(pointers: str, value: str, bounds: str) -> str:
    """A store inside ``bounds``; unmasked where these are empty."""
    return f"tl.store({pointers}, {value}" + (f", mask={bounds})" if bounds else ")")


def along(expression: str, axis: str) -> str:
    """``expression`` spread along one dimension of a tile: ``rows[:, None]``, ``(rows * 4096)[:, None]``."""
    return f"{expression}{axis}" if expression.isidentifier() else f"({expression}){axis}"
