"""Generated source against golden files, and the isolation of the emitters."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path

import pytest

from autosched.sketches import nodes
from autosched.sketches.builders import bmm, contraction, conv2d, gemm
from autosched.sketches.codegen import (
    combine,
    copy,
    epilogue,
    finish,
    gather,
    generate,
    launch,
    load,
    source_hash,
    work,
)
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS

GOLDEN = Path(__file__).parent / "golden"
H200 = PRESETS["H200"]

CASES = {
    "grid": (gemm(1000, 1000, 1000), "grid.ptr-ptr.direct-ptr", {}),
    "persistent": (
        gemm(4096, 4096, 4096, layout="nt", epilogue=["bias", "gelu"]),
        "persistent.tma-tma.subtiled-tma",
        {"subtile": 2, "flatten": 1},
    ),
    "split": (gemm(512, 512, 16384), "split.ptr-ptr.workspace", {"split_k": 8}),
    "batched": (
        contraction("bmk,bkn->bmn", {"b": 3, "m": 100, "n": 64, "k": 128}, dtype="fp32"),
        "grid.ptr-ptr.direct-ptr",
        {},
    ),
    "dynamic": (gemm(64, 4096, 4096, layout="nt", dynamic=["M"]), "grid.tma-tma.direct-tma", {}),
    "atomic": (gemm(128, 128, 65536), "split.tma-tma.atomic", {"block_m": 64, "block_n": 64, "split_k": 32}),
    "stream": (gemm(1000, 1000, 1000, epilogue=["bias"]), "stream.ptr-ptr.atomic", {"unroll": 2}),
    "swapped": (
        gemm(16, 28672, 4096, epilogue=["bias"]),
        "swap.split.tma-tma.workspace",
        {"block_m": 64, "block_n": 16, "dependent": 1},
    ),
    "vector": (gemm(1, 4096, 4096, layout="nt"), "grid.ptr-ptr.sum.direct-ptr", {"block_n": 16, "block_k": 256}),
    "copied": (gemm(4095, 4097, 4099), "persistent.copy-copy.subtiled-ptr", {"block_n": 64, "subtile": 2}),
    "gated": (
        gemm(4096, 14336, 4096, layout="nt", epilogue=["swiglu"]),
        "grid.tma-tma-tma.direct-tma",
        {"block_n": 96, "warps": 8, "maxnreg": 232},
    ),
    "scaled": (
        gemm(64, 4096, 14336, dtype="fp8e4m3", layout="nt", scales="row_column", alpha=0.5, beta=2.0),
        "grid.tma-tma.direct-tma",
        {"block_k": 128},
    ),
    "convolution": (
        conv2d(2, 320, 64, 64, 320, 3, 3, 2, 1, epilogue=["bias", "relu"]),
        "persistent.ptr-tma.subtiled-tma",
        {"block_m": 64, "block_n": 192, "subtile": 2},
    ),
    "convolution of few channels": (
        conv2d(32, 3, 224, 224, 64, 7, 7, 2, 3, groups=1, layout="nchw"),
        "split.ptr-ptr.workspace",
        {"block_n": 32, "block_k": 32},
    ),
    "boxes of a batch": (bmm(64, 1000, 1024, 128), "persistent.tma-tma.subtiled-ptr", {"specialize": 1}),
}


@pytest.mark.parametrize("label", CASES)
def test_source_is_golden(label: str) -> None:
    """Set UPDATE_GOLDEN=1 to write the files anew, then read the difference."""
    op, name, knobs = CASES[label]
    sketch = next(s for s in derive(op, H200) if s.name == name)
    source = generate(op, Schedule.of(sketch, **knobs)).source
    path = GOLDEN / f"{label.replace(' ', '_')}.py.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(source, encoding="utf-8")
    assert source == path.read_text(encoding="utf-8")
    ast.parse(source)


def test_masks_vanish_where_tiles_divide() -> None:
    op = gemm(4096, 4096, 4096)
    for sketch in derive(op, H200):
        assert "mask" not in generate(op, Schedule.of(sketch)).source


def test_offsets_past_32_bits_are_wide() -> None:
    op = gemm(65536, 65536, 64)
    source = generate(op, Schedule.of(derive(op, H200)[0])).source
    assert "rows.to(tl.int64) * 65536" in source
    assert "a_m.to" not in source


def test_the_hash_ignores_comments_and_blank_lines() -> None:
    assert source_hash("# one\n\nx = 1  \n") == source_hash("x = 1\n")
    assert source_hash("x = 1") != source_hash("x = 2")


def test_different_knobs_give_different_sources() -> None:
    op = gemm(4096, 4096, 4096)
    sketch = derive(op, H200)[0]
    hashes = {generate(op, Schedule.of(sketch, **{k.name: v})).source_hash for k in sketch.knobs for v in k.values}
    assert len(hashes) == sum(len(k.values) - 1 for k in sketch.knobs) + 1


VARIANTS = {
    name
    for name, value in vars(nodes).items()
    if inspect.isclass(value) and value.__module__ == nodes.__name__ and not name.startswith("_")
}


def asks(function: ast.FunctionDef) -> set[str]:
    """What an emitter asks of other nodes: type tests, their facts, and their types unless it makes one to emit it."""
    own = {n.id for a in function.args.args if a.annotation for n in ast.walk(a.annotation) if isinstance(n, ast.Name)}
    body = [n for statement in function.body for n in ast.walk(statement)]
    made = {n.func for n in body if isinstance(n, ast.Call)}
    named = {n.id for n in body if isinstance(n, ast.Name) and n not in made}
    facts = {n.attr for n in body if isinstance(n, ast.Attribute)} & {"tag", "tma", "copied", "summed", "sketch"}
    refusal = isinstance(function.body[-1], ast.Raise)  # the emitter of an unknown node names its type
    tests = {n.id for n in body if isinstance(n, ast.Name)} & {"isinstance", "type", "issubclass"}
    return (named & VARIANTS) - own | facts | (set() if refusal else tests)


def test_no_emitter_asks_for_another_nodes_variant() -> None:
    """An emitting function may make another node and emit it; it never asks which variant there is."""
    emitters = 0
    for module in (work, load, gather, combine, copy, epilogue, finish, launch):
        for function in (n for n in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(n, ast.FunctionDef)):
            assert asks(function) == set(), f"{module.__name__}.{function.name}"
            emitters += 1
    assert emitters > 40


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("    if isinstance(k.sketch.work, PersistentWork):\n        pass", {"isinstance", "sketch", "PersistentWork"}),
        ("    if node.store.tma:\n        pass", {"tma"}),
        ("    kinds = (GridWork, SplitWork)", {"GridWork", "SplitWork"}),
        ("    direct(DirectFinish(PointerStore()), k)", set()),
    ],
)
def test_the_isolation_test_sees_an_emitter_that_asks(body: str, found: set[str]) -> None:
    (function,) = ast.parse(f"def f(node: Work, k: Kernel) -> None:\n{body}\n").body
    assert isinstance(function, ast.FunctionDef)
    assert asks(function) == found


def test_a_piece_narrower_than_its_tile_is_masked_by_the_tile() -> None:
    """24 columns in tiles of 32: pieces of 8 divide 24, yet the tile's last piece lies outside."""
    op = gemm(15, 24, 64)
    sketch = next(s for s in derive(op, H200) if s.name == "persistent.ptr-ptr.subtiled-ptr")
    source = generate(op, Schedule.of(sketch, block_n=32, subtile=4)).source
    stores = [line for line in source.splitlines() if "tl.store" in line]
    assert len(stores) == 4
    assert all("(columns < N)[None, :]" in line for line in stores)
