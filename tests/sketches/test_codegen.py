"""Generated source against golden files, and the isolation of the emitters."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path

import pytest

from autosched.sketches import nodes
from autosched.sketches.builders import contraction, gemm
from autosched.sketches.codegen import combine, epilogue, finish, generate, launch, load, source_hash, work
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
}


@pytest.mark.parametrize("label", CASES)
def test_source_is_golden(label: str) -> None:
    """Set UPDATE_GOLDEN=1 to write the files anew, then read the difference."""
    op, name, knobs = CASES[label]
    sketch = next(s for s in derive(op, H200) if s.name == name)
    source = generate(op, Schedule.of(sketch, **knobs)).source
    path = GOLDEN / f"{label}.py.txt"
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


def test_no_emitter_asks_for_another_nodes_variant() -> None:
    """An emitting function may name the node type that it emits, and no other; none tests types at all."""
    variants = {
        name
        for name, value in vars(nodes).items()
        if inspect.isclass(value) and value.__module__ == nodes.__name__ and not name.startswith("_")
    }
    for module in (work, load, combine, epilogue, finish, launch):
        tree = ast.parse(inspect.getsource(module))
        for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
            own = {
                n.id
                for a in function.args.args
                if a.annotation
                for n in ast.walk(a.annotation)
                if isinstance(n, ast.Name)
            }
            used = {n.id for statement in function.body for n in ast.walk(statement) if isinstance(n, ast.Name)}
            asked = {n.attr for statement in function.body for n in ast.walk(statement) if isinstance(n, ast.Attribute)}
            where = f"{module.__name__}.{function.name}"
            assert not used & {"isinstance", "type", "issubclass"} or function.body[-1].__class__ is ast.Raise, where
            assert not (used & variants) - own - {"PointerStore"}, where
            assert not asked & {"tag", "tma", "sketch"}, where


def test_the_isolation_test_would_see_an_emitter_that_asks() -> None:
    tree = ast.parse("def f(node, k):\n    if isinstance(k.sketch.work, PersistentWork):\n        pass\n")
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert {"isinstance", "PersistentWork"} <= names


def test_a_piece_narrower_than_its_tile_is_masked_by_the_tile() -> None:
    """24 columns in tiles of 32: pieces of 8 divide 24, yet the tile's last piece lies outside."""
    op = gemm(15, 24, 64)
    sketch = next(s for s in derive(op, H200) if s.name == "persistent.ptr-ptr.subtiled-ptr")
    source = generate(op, Schedule.of(sketch, block_n=32, subtile=4)).source
    stores = [line for line in source.splitlines() if "tl.store" in line]
    assert len(stores) == 4
    assert all("(columns < N)[None, :]" in line for line in stores)
