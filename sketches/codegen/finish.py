"""Emitters of the Finish and Store nodes: from finished accumulators to the output, with follow-up kernels if any."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from math import ceil, log2

from autosched.sketches.codegen.epilogue import Piece, tile_pointers
from autosched.sketches.codegen.kernel import INT32_ELEMENTS, Kernel, Param, load, store
from autosched.sketches.nodes import DirectFinish, PointerStore, SubtiledFinish, TmaStore, WorkspaceFinish

#: Emits the epilogue on a piece, in the kernel that holds it.
Epilogue = Callable[[Kernel, Piece], None]
#: Elements that one program of the follow-up kernel adds up.
REDUCE_ELEMENTS = 1024


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
    block = k.knob("block_n")
    piece = _piece(k, k.op.products[0].accumulator, f"tile_n * {block}", k.knobs["block_n"])
    epilogue(k, piece)
    emit_store(node.store, k, piece, f"tile_n * {block}")
    return []


@emit_finish.register
def _subtiled(node: SubtiledFinish, k: Kernel, epilogue: Epilogue) -> list[Kernel]:
    pieces = [k.op.products[0].accumulator]
    width = k.knobs["block_n"]
    while len(pieces) < k.knobs["subtile"]:
        width //= 2
        for name in pieces:
            halves = f"tl.reshape({name}, ({k.knob('block_m')}, 2, {width}))"
            k.line(f"{name}0, {name}1 = tl.split(tl.permute({halves}, (0, 2, 1)))")
        pieces = [f"{name}{half}" for name in pieces for half in "01"]
    for i, name in enumerate(pieces):
        start = f"tile_n * {k.knob('block_n')}" + (f" + {i * width}" if i else "")
        piece = _piece(k, name, start, width)
        epilogue(k, piece)
        emit_store(node.store, k, piece, start)
    return []


@emit_finish.register
def _workspace(node: WorkspaceFinish, k: Kernel, epilogue: Epilogue) -> list[Kernel]:
    block_n = k.knob("block_n")
    piece = _piece(k, k.op.products[0].accumulator, f"tile_n * {block_n}", k.knobs["block_n"])
    pointers, bounds = _partial_sums(k, piece, "part.to(tl.int64)" if _is_wide(k) else "part")
    k.line(store(pointers, piece.value, bounds))

    after = Kernel("add_parts", k.op, k.view, dict(k.knobs))
    after.knobs["block_n"] = min(256, _power(k.view.extent("n")))
    after.knobs["block_m"] = min(_power(k.view.extent("m")), max(1, REDUCE_ELEMENTS // after.knobs["block_n"]))
    tiles_m = after.tiles("m", after.knob("block_m"))
    tiles_n = after.tiles("n", after.knob("block_n"))
    after.line(f"tile_n = tl.program_id(0) % {tiles_n}")
    if k.view.extent("batch") > 1:
        after.line(f"tile_m = tl.program_id(0) // {tiles_n} % {tiles_m}")
        after.line(f"batch = tl.program_id(0) // ({tiles_n} * {tiles_m})")
    else:
        after.line(f"tile_m = tl.program_id(0) // {tiles_n}")
    piece = _piece(after, "total", "tile_n * BLOCK_N", after.knobs["block_n"])
    pointers, bounds = _partial_sums(after, piece, "")
    after.line(f"parts = {pointers}")
    after.line("total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)")
    with after.block(f"for _ in range({after.knob('split_k')}):"):
        after.line(f"total += {load('parts', bounds)}")
        after.line(f"parts += {_slab(after)}")
    epilogue(after, piece)
    emit_store(PointerStore(), after, piece, "tile_n * BLOCK_N")
    batches = f" * {k.view.extent('batch')}" if k.view.extent("batch") > 1 else ""
    after.programs = f"{after.host_tiles('m', 'BLOCK_M')} * {after.host_tiles('n', 'BLOCK_N')}{batches}"
    return [after]


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
    k.descriptor(out, ("m", "n"), (piece.block_m, piece.width))
    k.line(f"{out.name}_desc.store([tile_m * {k.knob('block_m')}, {start}], {piece.value}.to(tl.{out.dtype.tl}))")


def _piece(k: Kernel, value: str, start: str, width: int) -> Piece:
    """Emits the row and column indices of a piece of the tile."""
    k.line(f"rows = tile_m * {k.knob('block_m')} + tl.arange(0, {k.knob('block_m')})")
    k.line(f"columns = {start} + tl.arange(0, {width})")
    return Piece(value, "rows", "columns", width, k.knobs["block_m"], k.knobs["block_n"])


def _partial_sums(k: Kernel, piece: Piece, part: str) -> tuple[str, str]:
    """Pointers to a piece of the partial sums of ``part``, and their bounds; the first part's where it is empty.

    The workspace is [part, batch, M, N], dense fp32.
    """
    k.params.setdefault("workspace_ptr", Param("workspace_ptr", "*fp32", "workspace"))
    m, n = k.extent("m"), k.extent("n")
    pointers = "workspace_ptr" + (f" + {part} * ({_slab(k)})" if part else "")
    if k.view.extent("batch") > 1:
        pointers += f" + batch * ({m} * {n})"
    rows = f"{piece.rows}.to(tl.int64)" if _is_wide(k) else piece.rows
    pointers += f" + ({rows} * {n})[:, None] + {piece.columns}[None, :]"
    bounds = [("m", piece.rows, piece.block_m, "[:, None]"), ("n", piece.columns, piece.block_n, "[None, :]")]
    return pointers, k.bounds(bounds)


def _slab(k: Kernel) -> str:
    """Elements of one part of the workspace."""
    batches = k.view.extent("batch")
    return f"{k.extent('m')} * {k.extent('n')}" + (f" * {batches}" if batches > 1 else "")


def _is_wide(k: Kernel) -> bool:
    """Whether offsets into the workspace need 64 bits."""
    elements = k.knobs["split_k"] * k.view.extent("batch") * k.view.extent("m") * k.view.extent("n")
    return elements > INT32_ELEMENTS or any(k.view.is_dynamic(g) for g in "mn")


def _power(extent: int) -> int:
    return 1 << ceil(log2(max(extent, 1)))
