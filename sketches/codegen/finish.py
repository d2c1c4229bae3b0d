"""Emitters of the Finish and Store nodes: from finished accumulators to the output, with follow-up kernels if any."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from autosched.sketches.codegen.combine import accumulator
from autosched.sketches.codegen.epilogue import Piece, tile_pointers
from autosched.sketches.codegen.kernel import INT32_ELEMENTS, Kernel, Region, Span, host_extent, load, power, store
from autosched.sketches.nodes import (
    AtomicFinish,
    DirectFinish,
    ImageStore,
    PointerStore,
    SubtiledFinish,
    TmaStore,
    WorkspaceFinish,
)

#: Emits the epilogue on a piece, in the kernel that holds it.
Epilogue = Callable[[Kernel, Piece], None]
#: Elements that one program of the follow-up kernel adds up.
REDUCE_ELEMENTS = 1024
#: The same where they are spread over about so many programs, two for each SM of a large device, and the fewest.
SPREAD = 256
FEWEST_ELEMENTS = 128


@singledispatch
def emit_finish(node: object, k: Kernel, epilogue: Epilogue) -> list[Kernel]:
    """Emits the node; returns the kernels that must run after ``k``."""
    raise NotImplementedError(type(node).__name__)


@singledispatch
def emit_store(node: object, k: Kernel, piece: Piece, start: str) -> None:
    """Emits the cast and the store of a piece; ``start`` is the first column as an expression."""
    raise NotImplementedError(type(node).__name__)


@emit_finish.register
def _direct(node: DirectFinish, k: Kernel, epilogue: Epilogue) -> list[Kernel]:
    for span in k.spans:
        start = k.place("n", span)
        piece = _piece(k, _values(k, span), start, span.start, span.width)
        epilogue(k, piece)
        emit_store(node.store, k, piece, start)
    return []


@emit_finish.register
def _subtiled(node: SubtiledFinish, k: Kernel, epilogue: Epilogue) -> list[Kernel]:
    for span in k.spans:
        pieces = [_values(k, span)]
        width = span.width
        while len(pieces) < k.knobs["subtile"]:
            width //= 2
            for value in (value for values in pieces for value in values.values()):
                halves = f"tl.reshape({value}, ({k.knob('block_m')}, 2, {width}))"
                k.line(f"{value}0, {value}1 = tl.split(tl.permute({halves}, (0, 2, 1)))")
            pieces = [{x: f"{value}{half}" for x, value in values.items()} for values in pieces for half in "01"]
        for i, values in enumerate(pieces):
            first = span.start + i * width
            start = f"tile_n * {k.knob('block_n')}" + (f" + {first}" if first else "")
            piece = _piece(k, values, start, first, width)
            epilogue(k, piece)
            emit_store(node.store, k, piece, start)
    return []


@emit_finish.register
def _workspace(node: WorkspaceFinish, k: Kernel, epilogue: Epilogue) -> list[Kernel]:
    wide = _is_wide(k)
    for span in k.spans:
        for i, value in enumerate(_values(k, span).values()):
            piece = _piece(k, {"": value}, k.place("n", span), span.start, span.width)
            pointers, bounds = _partial_sums(k, piece, "part.to(tl.int64)" if wide else "part", i)
            k.line(store(pointers, piece.value, bounds))
    dependent = bool(k.knobs["dependent"])
    if dependent:  # once every program has begun, so that the second kernel's start costs nothing after the last ends
        k.first("tl.extra.cuda.gdc_launch_dependents()")
    _declare(k)
    after = Kernel("add_parts", k.op, k.view, dict(k.knobs), dependent=dependent)
    elements = _spread(k) if dependent else REDUCE_ELEMENTS
    after.knobs["block_n"] = min(256, elements, power(k.view.extent("n")))
    after.knobs["block_m"] = min(power(k.view.extent("m")), max(1, elements // after.knobs["block_n"]))
    _add_parts(after, epilogue)
    after.programs = after.all_host_tiles()
    return [after]


def _spread(k: Kernel) -> int:
    """Elements for one program of the second kernel so that there are some ``SPREAD`` of them, a power of two."""
    total = k.view.extent("batch") * k.view.extent("m") * k.view.extent("n")
    return min(REDUCE_ELEMENTS, max(FEWEST_ELEMENTS, power(total // SPREAD)))


def _add_parts(after: Kernel, epilogue: Epilogue) -> None:
    """The body of the kernel that adds the parts in order."""
    tiles_m = after.tiles("m", after.knob("block_m"))
    tiles_n = after.tiles("n", after.knob("block_n"))
    after.line(f"tile_n = tl.program_id(0) % {tiles_n}")
    if after.batched:
        after.line(f"tile_m = tl.program_id(0) // {tiles_n} % {tiles_m}")
        after.line(f"batch = tl.program_id(0) // ({tiles_n} * {tiles_m})")
    else:
        after.line(f"tile_m = tl.program_id(0) // {tiles_n}")
    if after.dependent:
        after.line("tl.extra.cuda.gdc_wait()")
    totals = {name: "total" + name.removeprefix("acc") for name in after.op.accumulators}
    piece = _piece(after, totals, "tile_n * BLOCK_N", 0, after.knobs["block_n"])
    names = {total: "parts" + total.removeprefix("total") for total in totals.values()}
    bounds = ""
    for i, (total, parts) in enumerate(names.items()):
        pointers, bounds = _partial_sums(after, piece, "", i)
        after.line(f"{parts} = {pointers}")
        after.line(f"{total} = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)")
    parts_range = "tl.static_range" if after.dependent else "range"  # all parts in flight at once
    with after.block(f"for _ in {parts_range}({after.knob('split_k')}):"):
        for total, parts in names.items():
            after.line(f"{total} += {load(parts, bounds)}")
            after.line(f"{parts} += {_slab(after)}")
    epilogue(after, piece)
    emit_store(PointerStore(), after, piece, "tile_n * BLOCK_N")


@emit_finish.register
def _atomic(node: AtomicFinish, k: Kernel, epilogue: Epilogue) -> list[Kernel]:
    steps, block_m, block_n = k.knob("split_k") if k.partial == "all" else "STEPS", k.knob("block_m"), k.knob("block_n")
    share = "1" if k.partial == "all" else "share"
    workspace = k.workspace()
    accumulators = len(k.op.accumulators)
    area = f"({f'{accumulators} * ' if accumulators > 1 else ''}{block_m} * {block_n})"
    if k.partial == "some":
        with k.block(f"if share == {steps}:"):
            _direct(DirectFinish(PointerStore()), k, epilogue)
        k.line("else:")
        k.depth += 1
    k.line("# the workspace holds the sums of each tile, then for each tile how much of it was added")
    k.line(f"sums = {workspace} + tile.to(tl.int64) * {area}")
    places = []
    for span in k.spans:
        width = k.width("n", span)
        for i, value in enumerate(_values(k, span).values()):
            first = k.knobs["block_m"] * (i * k.knobs["block_n"] + span.start)
            inner = f"(tl.arange(0, {block_m}) * {width})[:, None] + tl.arange(0, {width})[None, :]"
            places.append((f"sums + {first} + {inner}" if first else f"sums + {inner}", value))
    for place, value in places:
        k.line(f'tl.atomic_add({place}, {value}, sem="relaxed")')
    k.line("tl.debug_barrier()")
    k.line(f"count = {workspace} + {_all_tiles(k)} * {area} + tile")
    k.line(f'added = tl.atomic_add(count, {share} * 1.0, sem="acq_rel")')
    with k.block(f"if added + {share} == {steps}:"):
        k.line("tl.debug_barrier()")
        for place, value in places:
            k.line(f'{value} = tl.load({place}, cache_modifier=".cg")')
        k.line("tl.debug_barrier()")
        for place, value in places:
            k.line(f"tl.store({place}, tl.zeros_like({value}))")
        k.line("tl.store(count, 0.0)")
        _direct(DirectFinish(PointerStore()), k, epilogue)
    if k.partial == "some":
        k.depth -= 1
    each = accumulators * k.knobs["block_m"] * k.knobs["block_n"] + 1
    k.regions.append(Region("workspace", f"{k.all_host_tiles()} * {each}", k.tile_count() * each, 4, zeroed=True))
    return []


def _all_tiles(k: Kernel) -> str:
    """Number of tiles of all batches, in 64 bits where it is known at run time only."""
    dynamic = any(k.view.is_dynamic(g) for g in ("batch", "m", "n"))
    return f"({k.all_tiles()}).to(tl.int64)" if dynamic else k.all_tiles()


@emit_store.register
def _pointer_store(node: PointerStore, k: Kernel, piece: Piece, start: str) -> None:
    out = k.op.output
    pointers, _ = tile_pointers(k, out, piece)
    shape = f"({piece.block_m}, {piece.width})"
    if "[:, None]" not in pointers or "[None, :]" not in pointers:
        pointers = f"tl.broadcast_to({pointers}, {shape})"
    bounds = k.bounds([("m", piece.rows, piece.block_m, "[:, None]"), ("n", piece.columns, piece.block_n, "[None, :]")])
    k.line(store(pointers, f"{piece.value}.to(tl.{out.dtype.tl})", bounds))


@emit_store.register
def _tma_store(node: TmaStore, k: Kernel, piece: Piece, start: str) -> None:
    out = k.op.output
    place, value = [f"tile_m * {k.knob('block_m')}", start], piece.value
    groups, block = ("m", "n"), (piece.block_m, piece.width)
    if node.transposed:
        place, value, groups, block = place[::-1], f"tl.trans({value})", groups[::-1], block[::-1]
    suffix = "" if piece.width == k.spans[0].width // max(1, k.knobs.get("subtile", 1)) else str(piece.width)
    name = k.descriptor(f"{out.name}_desc{suffix}", out, k.box(out, groups, block, folded=False))
    k.line(f"{name}.store([{', '.join(place)}], {value}.to(tl.{out.dtype.tl}))")


@emit_store.register
def _image_store(node: ImageStore, k: Kernel, piece: Piece, start: str) -> None:
    out, channels = k.op.output, k.knob("block_m")
    sides, places, left, inner = {}, {node.image.channel: f"tile_m * {channels}"}, piece.width, 1
    for axis, side in reversed(list(zip(k.boxed, k.box_sides, strict=True))):
        sides[axis] = min(side, left)  # a piece is whole rows of the box, or a part of one
        first = piece.first // inner % side
        places[axis] = f"corner_{axis}" + (f" + {first}" if first else "")
        left, inner = left // sides[axis], inner * side
    sides[node.image.channel] = piece.block_m
    axes = [next((x for x in out.index[s.index].axes if x in sides), "") for s in node.image.sides]
    box = k.image(out, node.image, sides)
    name = k.descriptor(f"{out.name}_desc", out, box)
    value = f"tl.trans({piece.value}).to(tl.{out.dtype.tl}).reshape({', '.join(map(str, box.block))})"
    k.line(f"{name}.store([{', '.join(places.get(axis, '0') for axis in axes)}], {value})")


def _values(k: Kernel, span: Span) -> dict[str, str]:
    """Name of each accumulator's piece, by accumulator."""
    return {name: accumulator(name, span) for name in k.op.accumulators}


def _piece(k: Kernel, values: dict[str, str], start: str, first_column: int, width: int) -> Piece:
    """Emits the row and column indices of a piece of the tile."""
    k.line(f"rows = {k.place('m', k.spans[0])} + tl.arange(0, {k.knob('block_m')})")
    k.emit_columns(start, first_column, width)
    first, *others = values.items()
    sizes = (k.knobs["block_m"], k.knobs["block_n"])
    return Piece(first[1], "rows", "columns", width, *sizes, tuple(others), first_column)


def _partial_sums(k: Kernel, piece: Piece, part: str, number: int) -> tuple[str, str]:
    """Pointers to a piece of the partial sums of ``part``, and their bounds; the first part's where it is empty.

    The workspace is [part, accumulator, batch, M, N], dense fp32; ``number`` counts the accumulators.
    """
    m, n = k.extent("m"), k.extent("n")
    wide_m = f"{m}.to(tl.int64)" if k.view.is_dynamic("m") else m
    pointers = k.workspace() + (f" + {part} * ({_slab(k)})" if part else "")
    if number:
        pointers += f" + {number} * ({_slab(k, 1)})"
    if k.batched:
        pointers += f" + {'batch.to(tl.int64)' if _is_wide(k) else 'batch'} * ({wide_m} * {n})"
    rows = f"{piece.rows}.to(tl.int64)" if _is_wide(k) else piece.rows
    pointers += f" + ({rows} * {n})[:, None] + {piece.columns}[None, :]"
    bounds = [("m", piece.rows, piece.block_m, "[:, None]"), ("n", piece.columns, piece.block_n, "[None, :]")]
    return pointers, k.bounds(bounds)


def _slab(k: Kernel, accumulators: int | None = None) -> str:
    """Elements of one part of the workspace, of all its accumulators if not given."""
    count = len(k.op.accumulators) if accumulators is None else accumulators
    first = k.extent("m") + (".to(tl.int64)" if k.view.is_dynamic("m") else "")
    text = f"{first} * {k.extent('n')}" + (f" * {k.batches()}" if k.batched else "")
    return text + (f" * {count}" if count > 1 else "")


def _declare(k: Kernel) -> None:
    """The region of the partial sums."""
    parts = [str(k.knobs["split_k"]), k.host_batches() if k.batched else str(k.view.extent("batch"))]
    sizes = [host_extent(k.op, k.view, g) for g in "mn"]
    accumulators = len(k.op.accumulators)
    text = " * ".join([*parts, *sizes, *([str(accumulators)] if accumulators > 1 else [])])
    count = k.knobs["split_k"] * accumulators
    for g in ("batch", "m", "n"):
        count *= k.view.extent(g)
    k.regions.append(Region("workspace", text, count, 4, zeroed=False))


def _is_wide(k: Kernel) -> bool:
    """Whether offsets into the workspace need 64 bits."""
    elements = k.knobs["split_k"] * len(k.op.accumulators)
    elements *= k.view.extent("batch") * k.view.extent("m") * k.view.extent("n")
    return elements > INT32_ELEMENTS or any(k.view.is_dynamic(g) for g in "mn")
