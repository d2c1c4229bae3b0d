"""What the generator writes compiles for sm_90, with the instructions that its sketch promises; no GPU is needed."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autosched.measure.cache import entry_name
from autosched.measure.compiling import CompilePool, CompileResult
from autosched.record import Status
from autosched.sketches import rules
from autosched.sketches.builders import contraction, gemm
from autosched.sketches.codegen import Generated, generate
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

TARGET = PRESETS["H200"]
OP = gemm(512, 512, 512, dtype="bf16")
SKETCHES = rules.derive(OP, TARGET)
BASE = {"block_m": 64, "block_n": 64, "block_k": 64, "warps": 4, "stages": 3}
#: Each sketch is compiled with BASE and with one of these in turn, (rows of the tile, warps).
OTHERS = ((64, 2), (32, 4), (128, 8), (64, 8), (16, 4))


@dataclasses.dataclass(frozen=True)
class Case:
    """A schedule that was compiled."""

    sketch: Sketch
    rows: int
    warps: int
    generated: Generated
    result: CompileResult

    @property
    def label(self) -> str:
        return f"{self.sketch.name} with {self.rows} rows and {self.warps} warps"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    cache = tmp_path_factory.mktemp("cache")
    with CompilePool(2, TARGET.capability, cache, timeout=120, shared_limit=TARGET.shared_per_block) as opened:
        yield opened


@pytest.fixture(scope="module")
def cases(pool: CompilePool) -> list[Case]:
    forms = [(sketch, *form) for i, sketch in enumerate(SKETCHES) for form in ((64, 4), OTHERS[i % len(OTHERS)])]
    sources = [generate(OP, Schedule.of(s, **{**BASE, "block_m": m, "warps": w})) for s, m, w in forms]
    results = pool.compile(sources)
    return [Case(*form, source, result) for form, source, result in zip(forms, sources, results, strict=True)]


def test_every_sketch_compiles(cases: list[Case]) -> None:
    assert len({case.sketch.name for case in cases}) == len(SKETCHES) > 1
    assert {case.label: case.result.error for case in cases if case.result.status is not Status.OK} == {}


def test_wgmma_exactly_with_64_rows_and_4_or_8_warps(cases: list[Case]) -> None:
    for case in cases:
        wide = case.rows >= 64 and case.warps in (4, 8)
        features = case.result.features
        assert (features["wgmma"] > 0, features["mma"] > 0) == (wide, not wide), case.label
        assert features["register_a"] == 0, case.label


def test_descriptors_where_the_sketch_says_so(cases: list[Case]) -> None:
    for case in cases:
        facts, features = case.sketch.facts(), case.result.features
        assert (features["tma_loads"] > 0) == bool(facts["tma_a"] or facts["tma_b"]), case.label
        assert (features["tma_stores"] > 0) == bool(facts["tma_store"]), case.label
        assert features["kernels"] == 1 + facts["workspace"], case.label
        if not (facts["tma_a"] and facts["tma_b"]):
            assert features["cp_async_16"] > 0, case.label  # aligned rows are copied by 16 bytes


def test_resources_are_within_bounds(cases: list[Case]) -> None:
    for case in cases:
        features = case.result.features
        assert 0 < features["shared_bytes"] <= TARGET.shared_per_block, case.label
        assert 0 < features["registers"] <= 255, case.label
        assert features["spill_bytes"] == 0, case.label


def launched(generated: Generated, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Names of the cache entries in which ``launch`` on tensors would look, without launching."""
    torch = pytest.importorskip("torch")
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.runtime.cache import get_cache_key
    from triton.runtime.jit import JITFunction, create_function_from_signature

    backend = triton.compiler.make_backend(GPUTarget("cuda", TARGET.capability, 32))
    entries: list[str] = []

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kwargs |= {"debug": False, "instrumentation_mode": ""}
        binder = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialization, _ = binder(*args, **kwargs)
        options, *parts = kernel._pack_args(backend, kwargs, bound, specialization, kwargs)
        source = triton.compiler.ASTSource(kernel, *parts)
        key = get_cache_key(source, backend, options, env_vars=get_cache_invalidating_env_vars())
        entries.append(entry_name(hashlib.sha256(key.encode()).hexdigest()))

    path = folder / f"kernel_{generated.source_hash}.py"
    path.write_text(generated.source)
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    tensors = [
        torch.empty_strided([n or 16 for n in shape], strides, dtype=getattr(torch, dtype))
        for shape, strides, dtype in module.TENSORS.values()
    ]
    with monkeypatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        module.launch(*tensors)
    return tuple(entries)


def test_launching_finds_what_was_compiled(cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specialisation compiled ahead is the one launched; else every launch would compile again."""
    for case in cases:
        assert launched(case.generated, tmp_path, monkeypatch) == case.result.entries, case.label


@pytest.mark.parametrize(
    "op",
    [
        gemm(1000, 1001, 1000, dtype="fp16", epilogue=["bias", "gelu"]),
        gemm(48, 640, 512, dtype="bf16", layout="nt", dynamic=["M"]),
        gemm(1, 512, 512, dtype="bf16"),
        contraction("bmk,bkn->bmn", {"b": 3, "m": 100, "n": 64, "k": 128}, dtype="fp32"),
    ],
    ids=lambda op: str(op.key()),
)
def test_other_ops_compile_and_are_found(
    op: Op, pool: CompilePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketches = rules.derive(op, TARGET)
    picked = dict.fromkeys([sketches[0], sketches[-1]])
    sources = [generate(op, Schedule.of(s, **{**BASE, "block_m": 16, "block_k": 32})) for s in picked]
    for sketch, source, result in zip(picked, sources, pool.compile(sources), strict=True):
        assert (result.status, result.error) == (Status.OK, ""), sketch.name
        exact = op.output.dtype.name == "fp32"  # IEEE fp32 has no tensor core
        assert (result.features["mma"] > 0) != exact, sketch.name
        assert launched(source, tmp_path, monkeypatch) == result.entries, sketch.name
