"""Compiled kernels for tests: what schedules become on sm_90, and which entries of the cache a launch finds."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autosched.measure.cache import entry_name
from autosched.measure.compiling import CompilePool, CompileResult
from autosched.sketches.codegen import Generated, generate
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS

TARGET = PRESETS["H200"]


@dataclass(frozen=True)
class Compiled:
    """A schedule that was compiled."""

    op: Op
    schedule: Schedule
    generated: Generated
    result: CompileResult

    @property
    def label(self) -> str:
        return f"{self.op.key()}: {self.schedule.to_json()}"

    @property
    def features(self) -> dict[str, float]:
        return self.result.features


def scheduled(op: Op, name: str, **knobs: int) -> Schedule:
    """The op's sketch of that name, with those of the knobs that it has."""
    sketch = next(s for s in derive(op, TARGET) if s.name == name)
    domain = {k.name for k in sketch.knobs}
    return Schedule.of(sketch, **{k: v for k, v in knobs.items() if k in domain})


def fitting(sketch: Sketch, **knobs: int) -> Schedule:
    """The sketch's schedule with those of the values that it may have."""
    domains = {k.name: k.values for k in sketch.knobs}
    return Schedule.of(sketch, **{k: v for k, v in knobs.items() if v in domains.get(k, ())})


def compile_all(pool: CompilePool, work: Sequence[tuple[Op, Schedule]]) -> list[Compiled]:
    """Everything compiled, in order."""
    sources = [generate(op, schedule) for op, schedule in work]
    done = zip(work, sources, pool.compile(sources), strict=True)
    return [Compiled(op, schedule, source, result) for (op, schedule), source, result in done]


def opened(cache: Path) -> CompilePool:
    """Two workers for the target."""
    return CompilePool(2, TARGET.capability, cache, timeout=120, shared_limit=TARGET.shared_per_block)


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
