"""The vendor library on a real GPU: what it takes, in a graph, and how exact its 8-bit arithmetic is."""

from __future__ import annotations

from typing import Any

import pytest

from autosched.errors import UnsupportedError
from autosched.measure.proof import Kernel, check_timing_output, normal_case, prove, run_case
from autosched.measure.tensors import allocate
from autosched.measure.vendor import precision, vendor
from autosched.sketches.builders import conv2d, conv2d_input_grad, conv2d_weight_grad, gemm
from autosched.sketches.op import Op

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

M, N, K = 256, 512, 1024


def _needs_float8(op: Op) -> None:
    if op.operands[0].dtype.is_float8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the device has no 8-bit floats")


def _captured(op: Op) -> Kernel:
    """The library's calls as a graph that is replayed once a launch, as timings do."""
    run = vendor(op)

    def launch(*tensors: Any, workspace: object = None) -> None:
        *inputs, out = tensors
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(inputs, out)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                found = run(inputs, out)
            out.zero_()
            graph.replay()
            if found is not out:
                out.copy_(found)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

    return Kernel(launch)


OPS = [
    gemm(M, N, K, dtype="fp32", alpha=0.5, beta=2.0),
    gemm(M, N, K, dtype="fp32", epilogue=["swiglu"]),
    gemm(M, N, K, dtype="int8", layout="nt"),
    gemm(M, N, K, dtype="int8", layout="nt", scales="row_column", epilogue=["bias"], out_dtype="fp32"),
    gemm(M, N, K, dtype="fp8e4m3", layout="nt"),
    gemm(M, N, K, dtype="fp8e4m3", layout="nt", scales="tensor", out_dtype="fp32"),
    gemm(M, N, K, dtype="fp8e4m3", layout="nt", scales="tensor", epilogue=["bias"], out_dtype="fp16"),
    gemm(M, N, K, dtype="fp8e4m3", layout="nt", scales="row_column", fast_accumulate=True),
    gemm(M, N, K, dtype="fp8e4m3", layout="nt", scales="row_column", epilogue=["bias"]),
    conv2d(4, 64, 14, 14, 64, 3, 3, 1, 1, dtype="fp16", epilogue=["bias", "relu"]),  # the library rounds before a bias
    conv2d(4, 64, 14, 14, 64, 3, 3, 2, 1, groups=2, dtype="fp16"),
    conv2d_weight_grad(4, 64, 14, 14, 64, 3, 3, 1, 1),
    conv2d_input_grad(4, 64, 14, 14, 64, 3, 3, 2, 1),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.key())
def test_it_computes_the_op_in_a_graph(op: Op) -> None:
    _needs_float8(op)
    with precision(op, reduced=False):
        verdict = prove(op, _captured(op), device="cuda")
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("fast", [False, True], ids=["fp32", "fast"])
@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("k", [512, 4096, 16384])
def test_the_tensor_cores_stay_within_the_timing_tolerance(k: int, out_dtype: str, fast: bool) -> None:
    op = gemm(2048, 2048, k, dtype="fp8e4m3", layout="nt", fast_accumulate=fast, out_dtype=out_dtype)
    _needs_float8(op)
    case, out, run = normal_case(op, "cuda", 0), allocate(op.output, "cuda"), vendor(op)
    run_case(Kernel(lambda *t, workspace: run(t[:-1], t[-1])), case, out, None)
    verdict = check_timing_output(op, case, out)
    assert verdict.ok, verdict.reason


def test_layouts_that_the_library_refuses_are_unsupported_or_right() -> None:
    for layout in ("nn", "tn", "tt"):
        op = gemm(M, N, K, dtype="int8", layout=layout)
        run = vendor(op)
        try:
            verdict = prove(op, lambda *t, workspace=None, run=run: run(t[:-1], t[-1]), device="cuda")
        except UnsupportedError:
            continue
        assert verdict.ok, verdict.reason
