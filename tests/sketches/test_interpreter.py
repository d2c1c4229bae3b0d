"""Every sketch against the reference through Triton's interpreter (its bf16 dot is broken, so fp16 and fp32)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from autosched.sketches.builders import contraction, gemm
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.rules.split import SHORTEST, SHORTEST_SIDE
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS
from tests.sketches.interpret import failures, interpret
from tests.sketches.pairwise import LARGE, SIZES, cases

pytest.importorskip("torch")
pytest.importorskip("triton")

H200 = PRESETS["H200"]
NAMES = sorted(s.name for s in derive(gemm(256, 256, 256, dtype="fp16"), H200))
#: Sketches by work and load path of A, such as "grid.tma": a process takes seconds to start, so each runs several.
GROUPS = sorted({name.split("-")[0] for name in NAMES})


def padded(m: int, n: int, k: int, layout: str = "nn", **keywords: object) -> Op:
    """A GEMM whose rows start 16-byte aligned whatever its sizes, so that TMA is legal."""
    shapes = {"a": (m, k) if layout[0] == "n" else (k, m), "b": (k, n) if layout[1] == "n" else (n, k), "out": (m, n)}
    strides = {name: (-(-inner // 8) * 8, 1) for name, (_, inner) in shapes.items()}
    return gemm(m, n, k, layout=layout, strides=strides, **keywords)  # type: ignore[arg-type]


def small(sketch: Sketch, **fixed: int) -> Schedule:
    """Tiles that cut each extent into a few, with every knob away from its trivial value where there is a choice."""
    domains = {knob.name: knob for knob in sketch.knobs}
    wanted = {"group_m": 2, "split_k": 3, "subtile": 2, "dependent": 1, "unroll": 2, **fixed}
    for group in ("m", "n", "k"):
        if f"block_{group}" not in fixed:
            wanted[f"block_{group}"] = max(16, min(256, sketch.view.extent(group) // 2))
    return Schedule.of(sketch, **{name: domains[name].nearest(v) for name, v in wanted.items() if name in domains})


def halved(offers: Iterable[tuple[Op, Iterable[Sketch]]]) -> list[tuple[Op, Schedule]]:
    """Every sketch on the first op that offers it or the second, and from there on every second one."""
    offered: Counter[str] = Counter()
    taken = []
    for op, sketches in offers:
        for i, sketch in enumerate(sketches):
            if (offered[sketch.name] + i) % 2 == 0:
                taken.append((op, small(sketch)))
            offered[sketch.name] += 1
    return taken


def test_pairs_are_covered() -> None:
    chosen = cases()
    assert all(sum(x > LARGE for x in case) <= 1 for case in chosen)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        pairs = {(case[i], case[j]) for case in chosen}
        assert pairs == {(x, y) for x in SIZES for y in SIZES if (x > LARGE) + (y > LARGE) <= 1}


def applies(group: str, m: int, n: int, k: int) -> bool:
    """Whether the rules derive sketches of the group for these sizes."""
    if group.startswith("stream"):
        return k >= SHORTEST and min(m, n) >= SHORTEST_SIDE
    return k >= SHORTEST or not group.startswith("split")


@pytest.mark.parametrize("group", GROUPS)
def test_sketches_on_odd_sizes(group: str) -> None:
    names = [name for name in NAMES if name.split("-")[0] == group]
    offers = []
    for i, (m, n, k) in enumerate(cases()):
        op = padded(m, n, k, ("nn", "nt", "tn", "tt")[i % 4], dtype=("fp16", "fp32")[i // 2 % 2])
        found = [s for s in derive(op, H200) if s.name in names]
        assert len(found) == len(names) * applies(group, m, n, k)
        offers.append((op, found))
    work = halved(offers)
    seen = Counter(s.sketch.name for _, s in work)
    assert set(seen) == set(names)
    assert min(seen.values()) >= (3 if group.startswith("stream") else 8)
    assert failures(work, interpret(work)) == []


@pytest.mark.parametrize("family", ["swap", ".sum.", "copy"])
def test_structures_of_some_ops_on_odd_sizes(family: str) -> None:
    """Swapped, matrix-vector and copying sketches."""
    whole = {"swap": gemm(16, 256, 256), ".sum.": gemm(1, 256, 256), "copy": gemm(255, 257, 259)}[family]
    names = {s.name for s in derive(whole, H200) if family in s.name}
    offers = []
    for i, (m, n, k) in enumerate([*cases(), (17, 129, 129)]):  # the last is for few rows of a long reduction
        make = gemm if family == "copy" else padded
        op = make(m, n, k, layout=("nn", "nt", "tn", "tt")[i % 4], dtype=("fp16", "fp32")[i // 2 % 2])
        offers.append((op, [s for s in derive(op, H200) if s.name in names]))
    work = halved(offers)
    assert {s.sketch.name for _, s in work} == names
    assert len({op for op, _ in work}) >= 6
    assert failures(work, interpret(work)) == []


OTHERS = {
    "batch": contraction("bmk,bkn->bmn", {"b": 3, "m": 17, "n": 33, "k": 129}, dtype="fp16"),
    "fused": contraction("abk,kn->abn", {"a": 3, "b": 7, "n": 33, "k": 129}, dtype="fp16"),
    "two axes a group": contraction("akb,kcd->acbd", {"a": 3, "k": 129, "b": 5, "c": 4, "d": 6}, dtype="fp16"),
    "two reductions": contraction("mkl,lkn->mn", {"m": 17, "n": 33, "k": 9, "l": 15}, dtype="fp16"),
    "matrix-vector": contraction("mk,k->m", {"m": 33, "k": 129}, dtype="fp16"),
    "vector-matrix": contraction("k,kn->n", {"n": 80, "k": 136}, dtype="fp16", epilogue=["bias"]),
    "outer": contraction("m,n->mn", {"m": 33, "n": 17}, dtype="fp16"),
    "dot": contraction("k,k->", {"k": 129}, dtype="fp32"),
    "transposed output": contraction("mk,kn->nm", {"m": 17, "n": 33, "k": 129}, dtype="fp16"),
    "transposed store": contraction("mk,kn->nm", {"m": 72, "n": 40, "k": 136}, dtype="fp16", epilogue=["residual"]),
    "unpadded": gemm(129, 17, 129, dtype="fp16"),
    "dynamic": gemm(17, 64, 129, dtype="fp16", layout="nt", dynamic=["M"]),
    "mixed output": gemm(17, 64, 129, dtype="fp16", out_dtype="fp32"),
    "linear epilogue": gemm(17, 72, 129, dtype="fp16", epilogue=["bias", "relu", "residual"]),
    "gelu": gemm(17, 72, 33, dtype="fp32", epilogue=["bias", "gelu"]),
    "gelu_tanh": gemm(17, 72, 33, dtype="fp32", epilogue=["gelu_tanh"]),
    "silu": gemm(17, 72, 33, dtype="fp32", epilogue=["silu", "residual"]),
}


@pytest.mark.parametrize("part", range(3))
def test_other_ops(part: int) -> None:
    """Every third sketch of each."""
    labels = list(OTHERS)[part::3]
    work = [(OTHERS[x], small(s)) for x in labels for s in derive(OTHERS[x], H200)[::3]]
    assert {op.key() for op, _ in work} == {OTHERS[x].key() for x in labels}
    assert failures(work, interpret(work)) == []


def test_tiles_warps_stages_and_order_change_no_bit() -> None:
    op = padded(65, 129, 129, dtype="fp16")
    variants: list[dict[str, int]] = [
        {"block_m": 16, "block_n": 128},
        {"block_m": 64, "block_n": 32, "warps": 8},
        {"block_m": 32, "block_n": 32, "stages": 5, "group_m": 1},
        {"block_m": 64, "block_n": 64, "warps": 1, "group_m": 8, "unroll": 2, "maxnreg": 168},
        {"block_m": 32, "block_n": 96, "flatten": 1, "evict": 2, "cache": 1},
    ]
    work = [(op, small(sketch, block_k=32, **v)) for sketch in derive(op, H200)[::4] for v in variants]
    assert len({s.sketch.name for _, s in work}) > 6
    results = interpret(work)
    assert failures(work, results) == []
    assert {digest for r in results for digest in r["digests"]} == {results[0]["digest"]}
