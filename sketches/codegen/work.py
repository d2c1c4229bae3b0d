"""Emitters of the Work nodes: which tile a program computes, and which part of the reduction.

Every one defines ``tile_m``, ``tile_n`` (and ``batch`` where there is more than one, ``part`` where the reduction is
cut) before ``main`` and again, if a loop needs it, before ``finish``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from autosched.sketches.codegen.kernel import Kernel
from autosched.sketches.nodes import GridWork, PersistentWork, SplitWork, Work

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
    k.programs = _host_tiles(k)


@emit_work.register
def _persistent(node: PersistentWork, k: Kernel, main: Main, finish: Finish) -> None:
    programs = k.const("PROGRAMS", node.programs)
    k.line("first = tl.program_id(0)")
    k.line(f"done = first - {programs}")
    flatten = bool(k.knobs["flatten"])
    with k.block(f"for tile in tl.range(first, {_tiles(k)}, {programs}, flatten={flatten}):"):
        _coordinates(k, "tile")
        main("0", k.extent("k"))
        k.line(
            "# the tile's place again, from a counter of its own: the next tile's loads need not wait for the stores"
        )
        k.line(f"done += {programs}")
        _coordinates(k, "done")
        finish()
    k.programs = f"min({_host_tiles(k)}, {node.programs})"


@emit_work.register
def _split(node: SplitWork, k: Kernel, main: Main, finish: Finish) -> None:
    split, block_k = k.knob("split_k"), k.knob("block_k")
    steps = k.const("STEPS", -(-k.view.extent("k") // k.knobs["block_k"]))
    k.line(f"part = tl.program_id(0) % {split}")
    k.line(f"tile = tl.program_id(0) // {split}")
    _coordinates(k, "tile")
    k.line("# whole steps of the loop, dealt out so that parts differ by one at most")
    k.line(f"k_begin = part * {steps} // {split} * {block_k}")
    k.line(f"k_end = (part + 1) * {steps} // {split} * {block_k}")
    main("k_begin", "k_end")
    finish()
    k.programs = f"{_host_tiles(k)} * {k.knobs['split_k']}"


def _tiles(k: Kernel) -> str:
    """Number of tiles of all batches, as the kernel computes it."""
    m, n = k.tiles("m", k.knob("block_m")), k.tiles("n", k.knob("block_n"))
    batches = k.view.extent("batch")
    return f"{m} * {n}" + (f" * {batches}" if batches > 1 else "")


def _host_tiles(k: Kernel) -> str:
    m, n = k.host_tiles("m", k.knob("block_m")), k.host_tiles("n", k.knob("block_n"))
    batches = k.view.extent("batch")
    return f"{m} * {n}" + (f" * {batches}" if batches > 1 else "")


def _coordinates(k: Kernel, tile: str) -> None:
    """``tile_m`` and ``tile_n`` of ``tile``: GROUP_M rows of tiles are visited column by column."""
    group, m, n = k.knob("group_m"), k.tiles("m", k.knob("block_m")), k.tiles("n", k.knob("block_n"))
    if k.view.extent("batch") > 1:
        k.line(f"batch = {tile} // ({m} * {n})")
        k.line(f"place = {tile} % ({m} * {n})")
        tile = "place"
    k.line(f"band = {tile} // ({group} * {n})")
    k.line(f"band_rows = tl.minimum({m} - band * {group}, {group})")
    k.line(f"tile_m = band * {group} + {tile} % ({group} * {n}) % band_rows")
    k.line(f"tile_n = {tile} % ({group} * {n}) // band_rows")
