"""Every structure on a real GPU: right on odd sizes in all types, and its workspace safe on streams and in graphs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.measure.base import Protocol
from autosched.measure.local import LocalMeasurer
from autosched.record import Status
from autosched.result import load_source
from autosched.search.space import GeneratedSpace
from autosched.sketches.builders import (
    bmm,
    contraction,
    conv1d,
    conv2d,
    conv2d_input_grad,
    conv2d_weight_grad,
    conv3d,
    gemm,
    grouped_gemm,
)
from autosched.sketches.codegen import generate
from autosched.sketches.op import Op
from autosched.sketches.reference import reference
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

#: What a schedule may end with that is not wrong: the space holds some that do not fit or whose choice has no effect.
HARMLESS = {Status.OK, Status.OUT_OF_RESOURCES, Status.INVALID, Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT}

OPS: dict[str, Op] = {
    "bf16 nn": gemm(253, 328, 456),
    "fp16 tt": gemm(136, 264, 520, dtype="fp16", layout="tt"),
    "fp16 unaligned": gemm(131, 257, 389, dtype="fp16", epilogue=["bias", "relu"]),
    "fp32": gemm(70, 136, 260, dtype="fp32", layout="nt"),
    "tf32": gemm(129, 264, 392, dtype="tf32", epilogue=["bias", "gelu"]),
    "fp8 scaled": gemm(136, 272, 528, dtype="fp8e4m3", layout="nt", scales="row_column"),
    "fp8 fast": gemm(72, 272, 528, dtype="fp8e5m2", layout="nn", scales="tensor", fast_accumulate=True),
    "int8": gemm(136, 272, 528, dtype="int8", layout="nt"),
    "one row": gemm(1, 520, 1032, epilogue=["silu"]),
    "few rows": gemm(17, 520, 1032, layout="nt", epilogue=["bias", "residual"]),
    "gated": gemm(72, 264, 456, layout="nt", epilogue=["swiglu"]),
    "gated few rows": gemm(24, 264, 456, layout="nt", epilogue=["bias", "geglu"]),
    "alpha and beta": gemm(136, 264, 456, layout="tn", alpha=0.5, beta=2.0, out_dtype="fp32"),
    "batched": bmm(5, 72, 136, 256, dtype="fp16", layout="nt"),
    "batched, odd": bmm(3, 67, 131, 200, epilogue=["bias"]),
    "broadcast batch": bmm(4, 72, 136, 192, strides={"b": (0, 136, 1)}),
    "long reduction": gemm(96, 136, 8200),
    "dynamic rows": gemm(200, 264, 392, layout="nt", dynamic=["M"], epilogue=["bias"]),
    "grouped": grouped_gemm(5, 333, 264, 200, layout="nt"),
    "conv2d": conv2d(3, 64, 13, 15, 72, 3, 3, 1, 1, epilogue=["bias", "relu"]),
    "conv2d, fp16, stride": conv2d(3, 64, 13, 15, 72, 3, 3, 2, 1, dtype="fp16"),
    "conv2d, fp8": conv2d(2, 64, 9, 9, 64, 3, 3, 1, 1, dtype="fp8e4m3", scales="tensor"),
    "conv2d, tf32, dilated": conv2d(2, 32, 12, 9, 40, 3, 3, 1, 2, dtype="tf32", dilation=2),
    "conv2d, groups": conv2d(2, 128, 9, 10, 64, 3, 3, 1, 1, groups=2, epilogue=["bias", "residual"]),
    "conv2d, depthwise": conv2d(2, 40, 9, 10, 40, 3, 3, 1, 1, groups=40),
    "conv2d, three channels": conv2d(2, 3, 33, 31, 64, 7, 7, 2, 3),
    "conv2d, nchw": conv2d(2, 32, 11, 9, 40, 3, 3, 1, 1, dtype="fp16", layout="nchw"),
    "conv1d": conv1d(4, 64, 203, 72, 5, 1, 2),
    "conv3d": conv3d(2, 32, 5, 7, 9, 40, 3, 3, 3, 1, 1),
    "kernel's gradient": conv2d_weight_grad(4, 64, 14, 14, 64, 3, 3, 1, 1),
    "input's gradient": conv2d_input_grad(4, 64, 14, 14, 64, 3, 3, 2, 1),
    "two axes a group": contraction("akb,kcd->acbd", {"a": 5, "k": 264, "b": 24, "c": 12, "d": 16}),
}


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    protocol = Protocol(run_timeout_s=20.0, load_seconds=0.2, launches=3, warmups=1, proof_launches=3)
    with LocalMeasurer(protocol=protocol) as made:
        yield made


@pytest.mark.parametrize("name", OPS)
def test_no_sketch_is_ever_wrong(measurer: LocalMeasurer, name: str) -> None:
    op = OPS[name]
    rng = np.random.default_rng(list(OPS).index(name))
    sketches = derive(op, measurer.target)
    chosen = []
    for sketch in sketches:  # each sketch of its own, so that every one is drawn
        space = GeneratedSpace(op, measurer.target, (sketch,))
        chosen += space.sample(rng, 2 if len(sketches) < 24 else 1).schedules()
    results = measurer.measure(op, chosen)
    bad = [(s.to_json(), r.status, r.error[:300]) for s, r in zip(chosen, results, strict=True)]
    assert [x for x in bad if x[1] not in HARMLESS] == []
    assert sum(r.ok for r in results) >= len(results) // 3


def nearest(op: Op, name: str, knobs: dict[str, int]) -> Schedule:
    """A schedule of the named sketch whose knobs are the nearest that it has."""
    sketch = next(s for s in derive(op, PRESETS["H200"]) if s.name == name)
    domains = {k.name: k for k in sketch.knobs}
    return Schedule.of(sketch, **{k: domains[k].nearest(v) for k, v in knobs.items() if k in domains})


def ready(op: Op, name: str, **knobs: int) -> tuple[Callable[..., Any], dict[str, Any], Any]:
    """The launcher of a schedule, integer operands, and the right answer."""
    run = load_source(generate(op, nearest(op, name, knobs)))["run"]
    source = torch.Generator(device="cuda").manual_seed(0)
    tensors = {}
    for operand in op.operands:
        values = torch.randint(-4, 5, operand.shape, generator=source, device="cuda")
        dtype = getattr(torch, operand.dtype.torch)
        tensors[operand.name] = torch.empty_strided(operand.shape, operand.strides, dtype=dtype, device="cuda")
        tensors[operand.name].copy_(values)
    return run, tensors, reference(op, tensors)


WORKSPACES = [
    ("split.tma-tma.workspace", {"split_k": 4}),
    ("split.tma-tma.workspace", {"split_k": 4, "dependent": 1}),
    ("split.tma-tma.atomic", {"split_k": 4}),
    ("split.ptr-ptr.atomic", {"split_k": 7}),
    ("stream.tma-tma.atomic", {}),
    ("stream.ptr-ptr.atomic", {"block_n": 192}),
    ("split.copy-copy.workspace", {"split_k": 3, "dependent": 1}),
    ("split.copy-copy.atomic", {"split_k": 3, "dependent": 1}),
    ("grid.copy-copy.direct-ptr", {"dependent": 1}),
    ("stream.copy-copy.atomic", {"dependent": 0}),
    ("swap.split.tma-image.workspace", {"split_k": 4, "dependent": 1, "box_h": 4, "box_w": 16}),
    ("swap.split.tma-image.atomic", {"split_k": 4, "box_h": 4, "box_w": 16}),
    ("swap.stream.ptr-image.atomic", {"box_h": 8, "box_w": 8}),
]
BASE = {"block_m": 64, "block_n": 64, "block_k": 64, "warps": 4, "stages": 3, "group_m": 2}


def op_of(name: str) -> Op:
    """Odd strides where the sketch copies, a convolution where it has image boxes, else aligned."""
    if "image" in name:
        return conv2d(4, 256, 14, 14, 128, 3, 3, 1, 1)
    return gemm(510, 515, 2051) if "copy" in name else gemm(512, 520, 2048)


@pytest.mark.parametrize(("name", "knobs"), WORKSPACES, ids=[f"{n}-{k}" for n, k in WORKSPACES])
def test_streams_never_share_a_workspace(name: str, knobs: dict[str, int]) -> None:
    run, tensors, expected = ready(op_of(name), name, **{**BASE, **knobs})
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    outputs = []
    for turn in range(60):
        with torch.cuda.stream(streams[turn % 3]):
            outputs.append(run(**tensors))
    torch.cuda.synchronize()
    assert [i for i, out in enumerate(outputs) if not torch.equal(out, expected)] == []


@pytest.mark.parametrize(("name", "knobs"), WORKSPACES, ids=[f"{n}-{k}" for n, k in WORKSPACES])
def test_interleaved_graph_replays_are_right(name: str, knobs: dict[str, int]) -> None:
    run, tensors, expected = ready(op_of(name), name, **{**BASE, **knobs})
    run(**tensors)
    torch.cuda.synchronize()
    graphs, outputs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs.append(run(**tensors))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for turn in range(40):
        if turn % 10 == 0:
            torch.cuda.synchronize()
            for out in outputs:
                out.fill_(float("nan"))
            torch.cuda.synchronize()
        with torch.cuda.stream(streams[turn % 2]):
            graphs[turn % 2].replay()
        eager = run(**tensors) if turn % 5 == 0 else None  # launches outside the graphs, on a stream of their own
        if turn % 10 == 9:
            torch.cuda.synchronize()
            assert torch.equal(outputs[0], expected)
            assert torch.equal(outputs[1], expected)
        assert eager is None or torch.equal(eager, expected)


#: Launches a generated module's kernel until it is killed; says so once the first launches are under way.
ENDLESS = """
import runpy, sys, torch
module = runpy.run_path(sys.argv[1])
tensors = {
    name: torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device="cuda").zero_()
    for name, (shape, strides, dtype) in module["TENSORS"].items() if name != "out"
}
for tensor in tensors.values():
    tensor.copy_(torch.randint(-4, 5, tensor.shape, device="cuda"))
module["run"](**tensors)
torch.cuda.synchronize()
print("launching", flush=True)
while True:
    for _ in range(200):
        module["run"](**tensors)
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize(("name", "knobs"), WORKSPACES, ids=[f"{n}-{k}" for n, k in WORKSPACES])
def test_a_launch_after_a_killed_one_is_right(name: str, knobs: dict[str, int], tmp_path: Path) -> None:
    op = op_of(name)
    run, tensors, expected = ready(op, name, **{**BASE, **knobs})
    source = generate(op, nearest(op, name, {**BASE, **knobs})).source
    (tmp_path / "kernel.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "kernel.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "launching\n"
            mine = run(**tensors)  # beside the other process's launches
            time.sleep(0.05)
        finally:
            child.kill()
    assert torch.equal(mine, expected)
    assert all(torch.equal(run(**tensors), expected) for _ in range(20))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8e4m3"])
def test_deterministic_kernels_repeat_every_bit(dtype: str) -> None:
    op = gemm(192, 264, 4096, dtype=dtype, layout="nt", deterministic=True)
    rng = np.random.default_rng(0)
    source = torch.Generator(device="cuda").manual_seed(0)
    tensors = {
        o.name: torch.randn(o.shape, generator=source, device="cuda").to(getattr(torch, o.dtype.torch))
        for o in op.operands
    }
    sketches = derive(op, PRESETS["H200"])
    assert not any(s.facts()["atomic"] for s in sketches)
    for sketch in sketches:
        schedule = GeneratedSpace(op, PRESETS["H200"], (sketch,)).sample(rng, 1)[0]
        try:
            run = load_source(generate(op, schedule))["run"]
            first = run(**tensors)
        except Exception as error:  # one that does not fit shows nothing here
            if type(error).__name__ in ("OutOfResources", "PTXASError", "RuntimeError"):
                continue
            raise
        assert all(torch.equal(first, run(**tensors)) for _ in range(5)), schedule.to_json()


@pytest.mark.parametrize("name", ["grid.tma-tma.direct-tma", "split.tma-tma.atomic", "persistent.ptr-tma.subtiled-ptr"])
def test_one_dynamic_kernel_is_right_for_every_size(name: str) -> None:
    op = gemm(256, 264, 512, layout="nt", dynamic=["M"])
    run, tensors, _ = ready(op, name, **BASE)
    for m in (1, 2, 15, 16, 17, 63, 64, 65, 129, 255, 256, 257, 300, 1000):
        a = torch.randint(-4, 5, (m, 512), device="cuda").bfloat16()
        expected = (a.float() @ tensors["b"].float().T).bfloat16()
        assert torch.equal(run(a, tensors["b"]), expected), m
    assert run(torch.empty(0, 512, device="cuda", dtype=torch.bfloat16), tensors["b"]).shape == (0, 264)


def test_more_than_2_to_the_31_elements_are_right() -> None:
    op = gemm(33000, 65600, 64, epilogue=["relu"])  # the output has 2.16e9 elements
    for name in ("grid.ptr-ptr.direct-ptr", "persistent.tma-tma.subtiled-tma", "grid.tma-tma.direct-ptr"):
        run, tensors, _ = ready_large(op, name)
        out = run(**tensors)
        for rows in (slice(0, 64), slice(32_000, 32_064), slice(32_936, 33_000)):
            expected = (tensors["a"][rows].float() @ tensors["b"].float()).relu().bfloat16()
            assert torch.equal(out[rows], expected), name
        del out


def ready_large(op: Op, name: str) -> tuple[Callable[..., Any], dict[str, Any], None]:
    """As ``ready``, without the answer, which would not fit."""
    sketch = next(s for s in derive(op, PRESETS["H200"]) if s.name == name)
    run = load_source(generate(op, Schedule.of(sketch, block_m=128, block_n=128, block_k=64)))["run"]
    tensors = {o.name: torch.randint(-4, 5, o.shape, device="cuda").bfloat16() for o in op.operands}
    return run, tensors, None
