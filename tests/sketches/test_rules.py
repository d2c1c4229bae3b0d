"""Derived sketches against the expected ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autosched.errors import UnsupportedError
from autosched.sketches.builders import contraction, gemm
from autosched.sketches.op import Op
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.target import PRESETS

H200, A100 = PRESETS["H200"], PRESETS["A100"]
GOLDEN = Path(__file__).parent / "golden" / "sketches.json"

#: The bf16 GEMM workloads of the public suite.
SUITE = [
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 6144, 4096),
    (4096, 28672, 4096),
    (4096, 4096, 14336),
    (65536, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (256, 4096, 4096),
    (128, 6144, 4096),
    (1, 4096, 4096),
    (16, 28672, 4096),
    (64, 4096, 14336),
    (128, 128, 65536),
    (512, 512, 16384),
    (1000, 1000, 1000),
    (2048, 4096, 1000),
    (4095, 4097, 4099),
]


def described(op: Op) -> list[str]:
    return [
        f"{s.name} | " + " ".join(f"{k.name}={k.values[0]}..{k.values[-1]}" for k in s.knobs) for s in derive(op, H200)
    ]


def test_suite_sketches_are_golden() -> None:
    """Set UPDATE_GOLDEN=1 to write the file anew, then read the difference."""
    found = {"x".join(map(str, shape)): described(gemm(*shape)) for shape in SUITE}
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_unaligned_operands_are_not_boxes() -> None:
    names = [s.name for s in derive(gemm(4095, 4097, 4099), H200)]
    assert names == ["grid.ptr-ptr.direct-ptr", "persistent.ptr-ptr.subtiled-ptr", "split.ptr-ptr.workspace"]


def test_one_aligned_operand_is_a_box() -> None:
    names = {s.name for s in derive(gemm(17, 129, 1000), H200)}  # a's rows are 2000 bytes, b's 258
    assert "grid.tma-ptr.direct-ptr" in names
    assert not any("-tma." in name or name.endswith("-tma") for name in names)


def test_devices_without_tma_have_no_boxes() -> None:
    assert len(derive(gemm(4096, 4096, 4096), A100)) == 3


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
    text = next(s for s in derive(gemm(4096, 4096, 4096), H200) if s.name == "split.tma-ptr.workspace").explain()
    assert "1. matrix view: M=M N=N K=K" in text
    assert "load path: a through a TMA descriptor" in text
    assert "split reduction: fp32 workspace plus a second kernel" in text
    assert "split_k" in text


def test_the_default_is_the_plainest_sketch() -> None:
    op = gemm(4096, 4096, 4096)
    assert default_schedule(op, H200, derive(op, H200)).to_json() == {
        "sketch": "grid.ptr-ptr.direct-ptr",
        "block_m": 128,
        "block_n": 128,
        "block_k": 64,
        "warps": 4,
        "stages": 3,
        "group_m": 8,
    }
    skinny = gemm(1, 4096, 4096)
    assert default_schedule(skinny, H200, derive(skinny, H200)).knobs["block_m"] == 16


def test_an_axis_in_one_tensor_only_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'q'"):
        contraction("mkq,kn->mn", {"m": 4, "k": 4, "q": 4, "n": 4})
