"""Emitters of the Work nodes: which tile a program computes, and which part of the reduction.

Every one defines ``tile``, ``tile_m``, ``tile_n`` (and ``batch`` where there is more than one) before ``main`` and
again, if a loop needs it, before ``finish``. Where programs may add only a part of a tile's steps it defines ``part``
or ``share``, the part's number and its steps, and says so in ``Kernel.partial``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from autosched.sketches.codegen.kernel import INT32_ELEMENTS, Kernel, host_extent
from autosched.sketches.nodes import (
    GridWork,
    PersistentWork,
    RaggedPersistentWork,
    RaggedWork,
    SplitWork,
    StreamWork,
    Work,
)

#: Emits the reduction over a range given by two expressions.
Main = Callable[[str, str], None]
#: Emits what happens to the finished accumulators.
Finish = Callable[[], None]


@singledispatch
def emit_work(node: Work, k: Kernel, main: Main, finish: Finish) -> None:
    """Emits the node around ``main`` and ``finish``, and sets the kernel's number of programs."""
    raise NotImplementedError(type(node).__name__)


@emit_work.register
def _grid(node: GridWork, k: Kernel, main: Main, finish: Finish) -> None:
    k.line("tile = tl.program_id(0)")
    _coordinates(k, "tile")
    main("0", k.extent("k"))
    finish()
    k.programs = k.all_host_tiles()


@emit_work.register
def _persistent(node: PersistentWork, k: Kernel, main: Main, finish: Finish) -> None:
    programs = k.const("PROGRAMS", node.programs)
    k.line("first = tl.program_id(0)")
    k.line(f"done = first - {programs}")
    options = f"flatten={bool(k.knobs['flatten'])}"
    if k.knobs["specialize"]:
        options += ", warp_specialize=True"
        k.shows = (*k.shows, "warp_specialized")
    with k.block(f"for tile in tl.range(first, {k.all_tiles()}, {programs}, {options}):"):
        _coordinates(k, "tile")
        main("0", k.extent("k"))
        k.line(
            "# the tile's place again, from a counter of its own: the next tile's loads need not wait for the stores"
        )
        k.line(f"done += {programs}")
        _coordinates(k, "done")
        finish()
    k.programs = f"min({k.all_host_tiles()}, {node.programs})"


@emit_work.register
def _split(node: SplitWork, k: Kernel, main: Main, finish: Finish) -> None:
    split, block_k = k.knob("split_k"), k.knob("block_k")
    steps = k.const("STEPS", -(-k.view.extent("k") // k.knobs["block_k"]))
    k.line(f"part = tl.program_id(0) % {split}")
    k.line(f"tile = tl.program_id(0) // {split}")
    _coordinates(k, "tile")
    k.line("# whole steps of the loop, dealt out so that parts differ by one at most")
    if _divides_steps(k):
        # Divisions of a step's index beside two quotients here are vectors of 16-bit numbers to LLVM, of which ptxas
        # 12.8 was seen to take one from another register (empty or endless loops on an H200); so none of the latter.
        each, more = divmod(k.constants["STEPS"], k.knobs["split_k"])
        k.line(f"k_begin = (part * {each} + tl.minimum(part, {more})) * {block_k}")
        k.line(f"k_end = ((part + 1) * {each} + tl.minimum(part + 1, {more})) * {block_k}")
    else:
        number = "part.to(tl.int64)" if k.constants["STEPS"] * k.knobs["split_k"] > INT32_ELEMENTS else "part"
        k.line(f"k_begin = {number} * {steps} // {split} * {block_k}")
        k.line(f"k_end = ({number} + 1) * {steps} // {split} * {block_k}")
    main("k_begin", "k_end")
    k.partial = "all"
    finish()
    k.programs = f"{k.all_host_tiles()} * {k.knobs['split_k']}"


@emit_work.register
def _stream(node: StreamWork, k: Kernel, main: Main, finish: Finish) -> None:
    block_k = k.knob("block_k")
    tiles = k.tile_count()
    programs = k.const("PROGRAMS", min(node.programs, tiles * -(-k.view.extent("k") // k.knobs["block_k"])))
    steps = k.const("STEPS", -(-k.view.extent("k") // k.knobs["block_k"]))
    rounds = k.const("WHOLE", max(0, tiles // k.constants["PROGRAMS"] - (tiles % k.constants["PROGRAMS"] > 0)))
    rest = k.const("REST", tiles * k.constants["STEPS"] - _whole_steps(k))
    k.line("program = tl.program_id(0).to(tl.int64)")
    k.line("# WHOLE tiles for each program in turn; of the REST steps of the others an even share, cut where it ends")
    k.line(f"begin = (program * {rest} // {programs}).to(tl.int32)")
    k.line(f"end = ((program + 1) * {rest} // {programs}).to(tl.int32)")
    k.line(f"rounds = {rounds} + tl.cdiv(end, {steps}) - begin // {steps}")
    with k.block("for turn in tl.range(0, rounds):"):
        k.line(f"cut = turn - {rounds} + begin // {steps}")
        k.line(f"whole = turn < {rounds}")
        k.line(
            f"tile = tl.where(whole, turn * {programs} + tl.program_id(0), {rounds} * {programs} + cut).to(tl.int32)"
        )
        k.line(f"step = tl.where(whole, 0, tl.maximum(begin - cut * {steps}, 0))")
        k.line(f"last = tl.where(whole, {steps}, tl.minimum(end - cut * {steps}, {steps}))")
        k.line("share = last - step")
        _coordinates(k, "tile")
        main(f"step * {block_k}", f"last * {block_k}")
        k.partial = "some"
        finish()
    k.programs = str(k.constants["PROGRAMS"])


@emit_work.register
def _ragged(node: RaggedWork, k: Kernel, main: Main, finish: Finish) -> None:
    _groups(k, node.offsets)
    k.line("tile = tl.program_id(0)")
    with k.block("if tile < tiles:"):
        _place_in_group(k, "tile")
        main("0", k.extent("k"))
        finish()
    k.programs = _most_tiles(k)


@emit_work.register
def _ragged_persistent(node: RaggedPersistentWork, k: Kernel, main: Main, finish: Finish) -> None:
    programs = k.const("PROGRAMS", node.programs)
    _groups(k, node.offsets)
    k.line("first = tl.program_id(0)")
    k.line(f"done = first - {programs}")
    with k.block(f"for tile in tl.range(first, tiles, {programs}, flatten={bool(k.knobs['flatten'])}):"):
        _place_in_group(k, "tile")
        main("0", k.extent("k"))
        k.line(f"done += {programs}")
        _place_in_group(k, "done")
        finish()
    k.programs = f"min({_most_tiles(k)}, {node.programs})"


def _groups(k: Kernel, offsets: str) -> None:
    """For each group its first row, its end and the tiles up to its end; ``tiles`` of all groups."""
    groups, block_m, n = k.const("GROUPS", k.view.extent("batch")), k.knob("block_m"), k.tiles("n", k.knob("block_n"))
    pointer = k.pointer(k.op.operand(offsets))
    width = 1 << max(1, (k.view.extent("batch") - 1).bit_length())
    k.line(f"group = tl.arange(0, {width})")
    k.line(f"begins = tl.load({pointer} + group - 1, mask=(group > 0) & (group < {groups}), other=0)")
    k.line(f"ends = tl.load({pointer} + group, mask=group < {groups}, other=0)")
    k.line(f"until = tl.cumsum(tl.cdiv(ends - begins, {block_m}), 0) * {n}")
    k.line("tiles = tl.max(until, 0)")


def _place_in_group(k: Kernel, tile: str) -> None:
    """The group of ``tile``, as ``batch``, the tile's place in the group, its first row and the end of the group."""
    block_m, n = k.knob("block_m"), k.tiles("n", k.knob("block_n"))
    k.line(f"batch = tl.sum((until <= {tile}).to(tl.int32), 0)")
    k.line("begin = tl.sum(tl.where(group == batch, begins, 0), 0)")
    k.line("row_limit = tl.sum(tl.where(group == batch, ends, 0), 0)")
    k.line(f"row_tiles = tl.cdiv(row_limit - begin, {block_m})")
    k.line(f"place = {tile} - tl.sum(tl.where(group == batch, until, 0), 0) + row_tiles * {n}")
    _banded(k, "place", k.knob("group_m"), "row_tiles", n)
    k.line(f"first_row = begin + tile_m * {block_m}")
    k.first_row, k.row_limit = "first_row", "row_limit"


def _most_tiles(k: Kernel) -> str:
    """Host expression of the most tiles that any ends give: a tile has a row, and each group one that is not full."""
    block, loose = k.knobs["block_m"], k.view.extent("batch") * (k.knobs["block_m"] - 1)
    if k.view.is_dynamic("m"):
        rows = host_extent(k.op, k.view, "m")
        return f"min({rows}, ({rows} + {loose}) // {block}) * {k.host_tiles('n', 'BLOCK_N')}"
    most = min(k.view.extent("m"), (k.view.extent("m") + loose) // block)
    return f"{most} * {k.host_tiles('n', 'BLOCK_N')}"


def _divides_steps(k: Kernel) -> bool:
    """Whether some operand's place in a step follows from quotients of the reduction's index."""
    names = {name for p in k.op.products for name in (p.left, p.right)}
    return bool(k.view.guards) or any(len(k.view.walk("k", name)) > 1 for name in names)


def _whole_steps(k: Kernel) -> int:
    """Steps of the tiles that programs take whole."""
    return k.constants["WHOLE"] * k.constants["PROGRAMS"] * k.constants["STEPS"]


def _coordinates(k: Kernel, tile: str) -> None:
    """``tile_m`` and ``tile_n`` of ``tile``, and its ``batch``."""
    group, m, n = k.knob("group_m"), k.tiles("m", k.knob("block_m")), k.tiles("n", k.knob("block_n"))
    if k.batched:
        k.line(f"batch = {tile} // ({m} * {n})")
        k.line(f"place = {tile} % ({m} * {n})")
        tile = "place"
    _banded(k, tile, group, m, n)


def _banded(k: Kernel, tile: str, group: str, m: str, n: str) -> None:
    """``tile_m`` and ``tile_n`` of one of m by n tiles: ``group`` rows of tiles are visited column by column."""
    k.line(f"band = {tile} // ({group} * {n})")
    k.line(f"band_rows = tl.minimum({m} - band * {group}, {group})")
    k.line(f"tile_m = band * {group} + {tile} % ({group} * {n}) % band_rows")
    k.line(f"tile_n = {tile} % ({group} * {n}) // band_rows")
