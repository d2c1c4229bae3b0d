"""The kernel of ``triton.autotune``: its numbers through Triton's interpreter, its code for sm_90, what it refuses.

Run as a module this file is the process that interprets: specs of ops on stdin, one JSON object an op on stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autosched.errors import UnsupportedError
from autosched.measure.rivals.triton_autotune import CONFIGS, Arguments, plan
from autosched.sketches.builders import bmm, build, contraction, gemm
from autosched.sketches.op import Op

TILE = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16}

CASES: dict[str, Op] = {
    "overhanging": gemm(40, 50, 37, dtype="fp16"),
    "transposed": gemm(33, 65, 48, dtype="fp16", layout="tt"),
    "fp32 in full": gemm(20, 24, 40, dtype="fp32", layout="nt"),
    "fp32 output, padded rows": gemm(
        24, 40, 32, dtype="fp16", out_dtype="fp32", strides={"out": (64, 1), "a": (40, 1)}
    ),
    "batched": bmm(3, 20, 40, 24, dtype="fp16", layout="nt", epilogue=["bias", "residual"]),
    "batch inside": contraction("mbk,bkn->mbn", {"m": 20, "b": 3, "k": 24, "n": 40}, dtype="fp16"),
    "fused axes": contraction("mck,nck->mn", {"m": 20, "c": 4, "k": 8, "n": 40}, dtype="fp16"),
    "order of the steps": gemm(40, 50, 37, dtype="fp16", epilogue=["relu", "bias", "residual"]),
    "gelu": gemm(24, 40, 32, dtype="fp16", epilogue=["bias", "gelu"]),
    "gelu_tanh": gemm(24, 40, 32, dtype="fp16", epilogue=["residual", "gelu_tanh"]),
    "silu": gemm(24, 40, 32, dtype="fp16", epilogue=["silu", "bias"]),
    "alpha and beta": gemm(24, 40, 32, dtype="fp16", alpha=0.5, beta=2.0, epilogue=["relu"]),
    "scales of rows and columns": gemm(24, 40, 32, dtype="fp16", scales="row_column", epilogue=["bias"]),
    "scales of tensors": gemm(24, 40, 32, dtype="fp16", scales="tensor"),
    "gated pair": gemm(24, 40, 32, dtype="fp16", layout="nt", epilogue=["swiglu"]),
    "integers": gemm(24, 40, 64, dtype="int8"),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.measure.test_rivals_triton"],
        input=json.dumps({name: op.spec for name, op in CASES.items()}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_computes_what_the_op_says(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes[name] == {"ok": True, "reason": ""}


def test_a_kernel_without_its_last_step_would_be_found(outcomes: dict[str, dict[str, Any]]) -> None:
    assert not outcomes["planted"]["ok"]
    assert "of 960 elements are wrong" in outcomes["planted"]["reason"]


def test_the_list_is_the_one_that_people_take() -> None:
    assert len(set(CONFIGS)) == len(CONFIGS) == 18
    assert CONFIGS[0] == (128, 256, 64, 3, 8)
    assert {m for m, *_ in CONFIGS} == {16, 32, 64, 128, 256}
    for m, n, k, stages, warps in CONFIGS:
        assert min(m, n, k) >= 16
        assert stages in (3, 4, 5)
        assert warps in (2, 4, 8)


@pytest.mark.parametrize(
    ("op", "what"),
    [
        (contraction("mck,nkc->mn", {"m": 8, "c": 4, "k": 4, "n": 8}), "one axis of each kind"),
        (contraction("mpk,kn->pmn", {"m": 8, "p": 4, "k": 4, "n": 8}), "one axis of each kind"),
        (gemm(65536, 32768, 64), "out, which spans 2147483648 elements"),
    ],
)
def test_what_it_does_not_serve_is_refused(op: Op, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        plan(op)


def test_the_plan_is_the_ops_data() -> None:
    op = bmm(3, 20, 40, 24, layout="nt", beta=2.0, epilogue=["gelu", "bias"])
    found = plan(op)
    assert (found.left, found.right, found.second, found.extras) == (0, 1, 1, (2, 3))
    assert (found.sizes, found.batch) == ((20, 40, 24), 3)
    assert found.strides == {
        "a_strides": (480, 24, 1),
        "b_strides": (960, 1, 24),
        "out_strides": (800, 40, 1),
        "extra_strides": ((800, 40, 1), (0, 0, 1)),
    }
    assert {name: found.constants[name] for name in ("STEPS", "TAKES", "SLOTS", "FACTORS")} == {
        "STEPS": ("add", "gelu", "add"),
        "TAKES": ("full", "", "row"),
        "SLOTS": (0, 1, 1),
        "FACTORS": (2.0, 1.0, 1.0),
    }
    assert plan(gemm(64, 64, 64, dtype="fp32")).constants["PRECISION"] == "ieee"
    assert plan(gemm(64, 64, 64, dtype="tf32")).constants["PRECISION"] == "tf32"
    assert plan(gemm(64, 64, 64, dtype="fp8e4m3")).constants["PROMOTED"]
    assert not plan(gemm(64, 64, 64, dtype="fp8e4m3", fast_accumulate=True)).constants["PROMOTED"]
    assert plan(gemm(64, 64, 64, dtype="int8")).constants["ACCUMULATOR"] == "int32"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "instruction"),
    [
        (gemm(512, 512, 512, dtype="bf16"), "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"),
        (gemm(512, 512, 512, dtype="bf16", layout="nt", epilogue=["swiglu"]), "wgmma.mma_async"),
        (gemm(512, 512, 512, dtype="fp8e4m3", layout="nt", scales="row_column"), "f32.e4m3.e4m3"),
        (gemm(512, 512, 512, dtype="int8", layout="nt"), "s32.s8.s8"),
        (gemm(512, 512, 512, dtype="tf32", epilogue=["bias", "gelu"]), "tf32"),
    ],
)
def test_it_compiles_for_sm_90(op: Op, instruction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ptx = _ptx(op, plan(op))
    assert instruction in ptx
    assert "cp.async.cg.shared.global" in ptx


def _ptx(op: Op, arguments: Arguments) -> str:
    """The kernel's code with 128 x 128 x 64 tiles, all pointers and sizes divisible by 16."""
    import triton
    from triton.backends.compiler import GPUTarget

    from autosched.measure.rivals.triton_autotune import kernel_constants
    from autosched.measure.rivals.triton_matmul import matmul

    kernel = triton.jit(matmul)
    place = {name: index for index, name in enumerate(kernel.arg_names)}
    constants = {**kernel_constants(arguments), "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
    operands = [op.operands[i] for i in (arguments.left, arguments.right, arguments.second)]
    pointers = [f"*{operand.dtype.triton}" for operand in (*operands, op.output)]
    signature: dict[str, Any] = dict(zip(("a", "b", "up", "out"), pointers, strict=True))
    signature["extras"] = tuple(f"*{op.operands[i].dtype.triton}" for i in arguments.extras) or (pointers[3],)
    signature |= dict.fromkeys("MNK", "i32")
    known: dict[tuple[int, ...], Any] = {(place[name],): value for name, value in constants.items()}
    divisible = [["tt.divisibility", 16]]
    attributes: dict[tuple[int, ...], Any] = {(place[name],): divisible for name in ("a", "b", "up", "out", *"MNK")}
    for name, strides in arguments.strides.items():
        signature[name] = _types(strides)
        for path, stride in _leaves((place[name],), strides):
            if stride == 1:
                known[path] = 1
            else:
                attributes[path] = divisible
    signature |= dict.fromkeys(constants, "constexpr")
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=known, attrs=attributes)
    options = {"num_warps": 8, "num_stages": 3}
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])


def _types(strides: Any) -> Any:
    if isinstance(strides, tuple):
        return tuple(_types(stride) for stride in strides)
    return "constexpr" if strides == 1 else "i32"


def _leaves(path: tuple[int, ...], strides: Any) -> list[tuple[tuple[int, ...], int]]:
    if not isinstance(strides, tuple):
        return [(path, strides)]
    return [leaf for index, stride in enumerate(strides) for leaf in _leaves((*path, index), stride)]


def _interpret(op: Op, steps: slice = slice(None)) -> dict[str, Any]:
    """What the proof says about the kernel, of which only some ``steps`` of the epilogue are left."""
    import triton

    from autosched.measure.proof import prove
    from autosched.measure.rivals.triton_autotune import kernel_constants
    from autosched.measure.rivals.triton_matmul import matmul

    arguments = plan(op)
    constants = kernel_constants(arguments)
    constants["STEPS"] = constants["STEPS"][steps]
    m, n, _ = arguments.sizes
    grid = (triton.cdiv(m, TILE["BLOCK_M"]) * triton.cdiv(n, TILE["BLOCK_N"]), arguments.batch)
    kernel = triton.jit(matmul)

    def launch(*tensors: Any, workspace: None) -> None:
        kernel[grid](*arguments.positional(tensors[:-1], tensors[-1]), **constants, **TILE)

    verdict = prove(op, launch, device="cpu")
    return {"ok": verdict.ok, "reason": verdict.reason}


def _main() -> None:
    found = {name: _interpret(build(spec)) for name, spec in json.load(sys.stdin).items()}
    found["planted"] = _interpret(CASES["silu"], slice(0, 1))
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
