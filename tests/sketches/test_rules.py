"""Derived sketches against the expected ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autosched.benching.suite import load_suite
from autosched.errors import UnsupportedError
from autosched.sketches.builders import bmm, contraction, gemm
from autosched.sketches.knobs import KNOBS, Knob
from autosched.sketches.op import Op
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.target import PRESETS, Target

H200, A100 = PRESETS["H200"], PRESETS["A100"]
GOLDEN = Path(__file__).parent / "golden" / "sketches.json"

#: The public suite's workloads.
SUITE = {w.label: w.build() for w in load_suite()}


def described(op: Op, target: Target = H200) -> dict[str, str]:
    """Sketches by everything but their loads: the loads, with the knobs that only these have, and all knobs' ranges."""
    found: dict[str, dict[str, tuple[Knob, ...]]] = {}
    for sketch in derive(op, target):
        tags = "-".join(load.tag for load in sketch.loads)
        found.setdefault(sketch.name.replace(f".{tags}.", ".*."), {})[tags] = sketch.knobs
    told = {}
    for rest, loads in found.items():
        common = [k for k in next(iter(loads.values())) if all(k in knobs for knobs in loads.values())]
        words = ["+".join([tags, *(k.name for k in knobs if k not in common)]) for tags, knobs in loads.items()]
        ranges = [f"{k.name}={k.values[0]}..{k.values[-1]}" for k in common]
        told[rest] = " ".join(words) + " | " + " ".join(ranges)
    return told


def names(op: Op, target: Target = H200) -> set[str]:
    return {s.name for s in derive(op, target)}


def test_suite_sketches_are_golden() -> None:
    """Set UPDATE_GOLDEN=1 to write the file anew, then read the difference."""
    found = {label: described(op) for label, op in SUITE.items()}
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_names_are_unique_and_derivations_deterministic() -> None:
    for label, op in SUITE.items():
        sketches = derive(op, H200)
        assert len({s.name for s in sketches}) == len(sketches), label
        assert sketches == derive(op, H200), label


def test_unaligned_operands_are_not_boxes() -> None:
    assert not any("tma" in name for name in names(gemm(4095, 4097, 4099)))


def test_one_aligned_operand_is_a_box() -> None:
    found = names(gemm(17, 129, 1000))  # a's rows are 2000 bytes, b's 258
    assert {"grid.tma-ptr.direct-ptr", "grid.tma-copy.direct-ptr", "swap.grid.copy-tma.direct-ptr"} <= found
    assert not any(name.startswith(("grid.", "split.")) and "-tma" in name for name in found)


def test_devices_without_tma_have_no_boxes() -> None:
    assert names(gemm(4096, 4096, 4096), A100) == {
        "grid.ptr-ptr.direct-ptr",
        "persistent.ptr-ptr.subtiled-ptr",
        "split.ptr-ptr.workspace",
        "split.ptr-ptr.atomic",
        "stream.ptr-ptr.atomic",
    }


def started(op: Op, start: str) -> bool:
    return any(name.startswith(start) for name in names(op))


@pytest.mark.parametrize(
    ("op", "swapped"),
    [
        (gemm(63, 64, 256), True),
        (gemm(64, 4096, 256), False),
        (gemm(63, 63, 256), False),
        (gemm(4096, 16, 256), False),  # the rows fill the tensor cores as they are
        (bmm(4, 1, 512, 256), True),
        (gemm(1, 4096, 256, dtype="fp8e4m3", layout="nt"), True),
    ],
)
def test_skinny_products_are_swapped(op: Op, swapped: bool) -> None:
    assert started(op, "swap.") == swapped
    assert not started(op, "swap.swap")


@pytest.mark.parametrize(
    ("op", "summed"),
    [
        (gemm(4, 4096, 4096), True),
        (gemm(5, 4096, 4096), False),
        (gemm(1, 4096, 4096, dtype="int8"), False),  # its sums are integers
        (gemm(1, 4096, 4096, epilogue=["swiglu"]), False),  # two products
        (contraction("mk,k->m", {"m": 4096, "k": 4096}), False),  # one column, not one row
    ],
)
def test_few_rows_are_summed_without_tensor_cores(op: Op, summed: bool) -> None:
    found = {s.name: s.knobs for s in derive(op, H200) if s.combine.summed}
    assert bool(found) == summed
    assert all("tma" not in name.split(".sum.")[0] and not name.startswith("swap") for name in found)
    assert all(next(k.values for k in knobs if k.name == "block_m") == (1,) for knobs in found.values())


def test_streams_are_for_known_sizes_without_a_short_side_in_any_order() -> None:
    assert started(gemm(64, 64, 128), "stream.")
    for op in (
        gemm(63, 4096, 4096),
        gemm(4096, 63, 4096),
        gemm(4096, 4096, 127),
        gemm(4096, 4096, 4096, layout="nt", dynamic=["M"]),
        gemm(4096, 4096, 4096, deterministic=True),
        gemm(4096, 4096, 4096, dtype="int8"),
        bmm(4, 512, 512, 512, dynamic=["B"]),
    ):
        assert not started(op, "stream."), op.key()


def test_an_order_that_must_not_change_has_no_atomics() -> None:
    free, fixed = (names(gemm(4096, 4096, 4096, deterministic=d)) for d in (False, True))
    assert {name for name in free if "atomic" not in name} == fixed
    assert any(name.startswith("split") for name in fixed)


@pytest.mark.parametrize(
    ("op", "copied"),
    [
        (gemm(4096, 4096, 4096), set()),
        (gemm(4096, 4096, 4096, dtype="int8"), {"b"}),  # stored by rows, which its dot does not take
        (gemm(4096, 4096, 4096, dtype="fp8e4m3", layout="tt"), {"a"}),
        (gemm(4096, 4096, 4096, dtype="tf32", layout="tn"), {"a", "b"}),
        (gemm(4095, 4097, 4099), {"a", "b"}),
        (gemm(4096, 4096, 1001, layout="nt"), {"a", "b"}),
        (gemm(1000, 1024, 1000), {"a"}),  # a's rows of 2000 bytes begin in the midst of cache lines
        (gemm(63, 4096, 1001), set()),  # a is short, b aligned
        (gemm(63, 4096, 1001, layout="nt"), {"b"}),
        (bmm(4, 512, 512, 512, strides={"a": (512 * 512 + 8, 512, 1)}), {"a"}),  # a gap between the matrices
        (contraction("akb,kcd->acbd", {"a": 64, "k": 128, "b": 64, "c": 64, "d": 64}), set()),  # rows of two axes
    ],
)
def test_what_no_descriptor_serves_is_copied(op: Op, copied: set[str]) -> None:
    assert {load.operand for s in derive(op, H200) for load in s.loads if load.copied} == copied


def test_a_batch_is_boxes_where_its_matrices_follow_each_other() -> None:
    assert "grid.tma-tma.direct-ptr" in names(bmm(4, 512, 512, 512))
    assert "grid.tma-tma.direct-ptr" in names(bmm(4, 512, 512, 512, strides={"a": (0, 512, 1)}))  # one for all
    assert not any(name.endswith("-tma") for name in names(bmm(4, 512, 512, 512)))  # a box would write the next matrix


def test_both_operands_of_a_gated_pair_are_loaded_in_the_same_way() -> None:
    found = {tuple(load.tag for load in s.loads) for s in derive(gemm(4096, 4096, 4096, epilogue=["swiglu"]), H200)}
    assert found == {(a, b, b) for a in ("ptr", "tma") for b in ("ptr", "tma")}


def test_short_reductions_are_not_split() -> None:
    assert not any(s.name.startswith("split") for s in derive(gemm(512, 512, 64), H200))


def test_a_contraction_is_the_gemm_that_it_means() -> None:
    plain = contraction("mk,kn->mn", {"m": 512, "k": 256, "n": 128})
    assert described(plain) == described(gemm(512, 128, 256))


def test_axes_whose_strides_nest_are_fused() -> None:
    op = contraction("abk,kn->abn", {"a": 4, "b": 128, "k": 256, "n": 128})
    (view,) = {s.view for s in derive(op, H200)}
    assert [a.axes for a in view.m] == [("a", "b")]
    assert view.m[0].extent == 512
    assert described(op) == described(gemm(512, 128, 256))


def test_a_dynamic_axis_is_never_the_inner_one_of_a_fusion() -> None:
    op = contraction("abk,kn->abn", {"a": 4, "b": 128, "k": 256, "n": 128}, dynamic=["a"])
    (view,) = {s.view for s in derive(op, H200)}
    assert view.m[0].dynamic
    assert view.m[0].axes == ("a", "b")


def test_derivations_are_told() -> None:
    sketches = {s.name: s for s in derive(gemm(4096, 4096, 4096), H200)}
    text = sketches["split.tma-ptr.workspace"].explain()
    assert "1. matrix view: M=M N=N K=K" in text
    assert "load path: a through a TMA descriptor" in text
    assert "split reduction: fp32 workspace plus a second kernel" in text
    assert "split_k" in text
    assert "split reduction: fp32 atomics, the last block finishes" in sketches["split.tma-ptr.atomic"].explain()
    assert "stream-K: 132 programs, the last tiles cut evenly" in sketches["stream.tma-ptr.atomic"].explain()
    skinny = {s.name: s.explain() for s in derive(gemm(1, 4096, 4099), H200)}
    assert "operand side: M=N N=M K=K, rows from the right operand" in skinny["swap.grid.tma-ptr.direct-ptr"]
    assert "matrix-vector: a row of block_n columns a program" in skinny["grid.ptr-ptr.sum.direct-ptr"]
    copied = {s.name: s.explain() for s in derive(gemm(4095, 4097, 4099), H200)}["grid.copy-ptr.direct-ptr"]
    assert "padded copy: a copied, rows padded to cache lines, then boxes" in copied


def test_the_default_is_the_plainest_sketch() -> None:
    op = gemm(4096, 4096, 4096)
    plain = default_schedule(op, H200, derive(op, H200)).to_json()
    assert plain == {
        "sketch": "grid.ptr-ptr.direct-ptr",
        "block_m": 128,
        "block_n": 128,
        "block_k": 64,
        "warps": 4,
        "stages": 3,
        "group_m": 8,
        **{name: info.default for name, info in KNOBS.items() if info.seldom and name in plain},
    }
    skinny = gemm(1, 4096, 4096)
    assert default_schedule(skinny, H200, derive(skinny, H200)).knobs["block_m"] == 16
    gated = gemm(4096, 4096, 4096, epilogue=["swiglu"])  # two accumulators of 128 x 128 do not fit 4 warps
    assert default_schedule(gated, H200, derive(gated, H200)).knobs["block_n"] == 64


def test_an_axis_in_one_tensor_only_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'q'"):
        contraction("mkq,kn->mn", {"m": 4, "k": 4, "q": 4, "n": 4})
