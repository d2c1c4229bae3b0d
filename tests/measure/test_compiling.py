"""The compile pool: what compiles, what does not, what hangs and crashes, each under its own name."""

from __future__ import annotations

import hashlib
import json
import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosched.errors import WorkerError
from autosched.measure.cache import copy_entry, entry_name, trim
from autosched.measure.compiling import CompilePool, CompileResult
from autosched.measure.process import ChildProcess
from autosched.record import Status
from autosched.sketches.codegen import Generated, KernelSpec

pytest.importorskip("triton")

SHARED_LIMIT = 232_448
GEMM = """
import triton
import triton.language as tl


@triton.jit
def contract(a_ptr, b_ptr, c_ptr):
    m = tl.arange(0, {tile})[:, None]
    n = tl.arange(0, {tile})[None, :]
    k = tl.arange(0, 64)
    acc = tl.zeros(({tile}, {tile}), tl.float32)
    for k0 in range(0, 1024, 64):
        a = tl.load(a_ptr + m * 1024 + (k0 + k)[None, :]){cast}
        b = tl.load(b_ptr + (k0 + k)[:, None] * {tile} + n)
        acc = tl.dot(a, b, acc)
    {extra}
    tl.store(c_ptr + m * {tile} + n, acc.to(tl.bfloat16))
"""


def generated(source: str, *, warps: int = 4, stages: int = 3) -> Generated:
    """A schedule's source with one kernel of three bf16 pointers."""
    spec = KernelSpec("contract", dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*bf16"), (0, 1, 2), warps, stages)
    text = textwrap.dedent(source)
    return Generated(text, hashlib.sha256(text.encode()).hexdigest(), (spec,), 0, False, "gemm")


def gemm(*, tile: int = 64, warps: int = 4, stages: int = 3, extra: str = "", cast: str = "") -> Generated:
    return generated(GEMM.format(tile=tile, extra=extra, cast=cast), warps=warps, stages=stages)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    cache = tmp_path_factory.mktemp("cache")
    with CompilePool(2, 90, cache, timeout=60, shared_limit=SHARED_LIMIT) as opened:
        yield opened


def collect(pool: CompilePool, wanted: int, within: float = 90.0) -> dict[int, CompileResult]:
    results: dict[int, CompileResult] = {}
    limit = time.monotonic() + within
    while len(results) < wanted and time.monotonic() < limit:
        results.update(pool.ready(1.0))
    assert len(results) == wanted
    return results


def test_wgmma_and_mma(pool: CompilePool) -> None:
    four, two = pool.compile([gemm(warps=4), gemm(warps=2)])
    assert (four.status, four.error) == (Status.OK, "")
    assert (two.status, two.error) == (Status.OK, "")
    assert (four.features["wgmma"], four.features["mma"]) == (4, 0)
    assert two.features["wgmma"] == 0
    assert two.features["mma"] > 0
    assert four.features["shared_bytes"] == 3 * (64 + 64) * 64 * 2
    assert two.features["shared_bytes"] == 2 * (64 + 64) * 64 * 2
    assert four.features["cp_async_16"] == 2 * 4 * 3  # two operands, 4 copies of 128 x 16 B, 2 ahead and 1 in the loop
    assert four.features["register_a_hazard"] == 0
    assert four.seconds > 0


def test_static_assert_is_a_compile_error(pool: CompilePool) -> None:
    [result] = pool.compile([gemm(extra="tl.static_assert(False, 'tile too odd')")])
    assert result.status is Status.COMPILE_ERROR
    assert "CompileTimeAssertionFailure" in result.error
    assert "tile too odd" in result.error
    assert not result.features


def test_syntax_error_is_a_compile_error(pool: CompilePool) -> None:
    [result] = pool.compile([generated("def contract(:\n")])
    assert result.status is Status.COMPILE_ERROR
    assert result.error.startswith("SyntaxError")


def test_missing_kernel_is_a_compile_error(pool: CompilePool) -> None:
    [result] = pool.compile([generated("x = 1\n")])
    assert result.status is Status.COMPILE_ERROR
    assert "'contract'" in result.error


def test_long_errors_are_shortened(pool: CompilePool) -> None:
    [result] = pool.compile([generated("raise RuntimeError('begin' + 'x' * 100000 + 'end')\n")])
    assert result.status is Status.COMPILE_ERROR
    assert result.error.startswith("RuntimeError: begin")
    assert result.error.endswith("end")
    assert len(result.error) <= 2000


def test_too_much_shared_memory(pool: CompilePool) -> None:
    [result] = pool.compile([gemm(tile=128, stages=8, warps=8)])
    assert result.status is Status.OUT_OF_RESOURCES
    assert result.features["shared_bytes"] == 8 * (128 + 128) * 64 * 2
    assert str(8 * (128 + 128) * 64 * 2) in result.error
    assert str(SHARED_LIMIT) in result.error


def test_register_a_hazard_is_invalid(pool: CompilePool) -> None:
    [result] = pool.compile([gemm(cast=" * 2")])
    assert result.status is Status.INVALID
    assert result.error.startswith("register-A hazard: ")
    assert result.features["register_a"] == 4


def test_hang_and_crash_are_named_and_the_pool_goes_on(tmp_path: Path) -> None:
    hang = generated("import subprocess, time\nsubprocess.Popen(['sleep', '600'])\ntime.sleep(60)\n")
    crash = generated("import os\nos.kill(os.getpid(), 11)\n")
    quit_ = generated("import os\nos._exit(3)\n")
    others = {11: crash, 13: gemm(), 17: quit_, 19: gemm(stages=2)}
    with CompilePool(1, 90, tmp_path, timeout=2) as pool:
        pool.submit(7, hang)
        results = collect(pool, 1)
        pool.timeout = 90  # the others may take their time on a busy machine
        for identity, one in others.items():
            pool.submit(identity, one)
        assert pool.pending == 4
        results |= collect(pool, 4)
        assert pool.pending == 0
    assert {identity: result.status for identity, result in results.items()} == {
        7: Status.COMPILE_TIMEOUT,
        11: Status.WORKER_CRASH,
        13: Status.OK,
        17: Status.WORKER_CRASH,
        19: Status.OK,
    }
    assert results[7].error == "not compiled within 2 s"
    assert results[7].seconds >= 2
    assert "SIGSEGV" in results[11].error
    assert "code 3" in results[17].error


def test_results_do_not_depend_on_the_order(pool: CompilePool) -> None:
    several = [gemm(), gemm(warps=2), gemm(stages=4), gemm(extra="tl.static_assert(False)")]
    forward = pool.compile(several)
    backward = pool.compile(several[::-1])[::-1]
    assert [(r.status, r.features, r.entries) for r in forward] == [(r.status, r.features, r.entries) for r in backward]


def test_children_load_no_torch(tmp_path: Path) -> None:
    report = generated("import sys\nraise RuntimeError(sorted({'torch', 'triton', 'xgboost'} & set(sys.modules)))\n")
    with CompilePool(1, 90, tmp_path) as pool:
        ok, result = pool.compile([gemm(), report])
    assert ok.status is Status.OK
    assert result.error == "RuntimeError: ['triton']"


def test_close_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    say = "import os\nopen({path!r}, 'w').write(str(os.getpid()))\nimport time\ntime.sleep(60)\n"
    file = tmp_path / "pid"
    pool = CompilePool(1, 90, tmp_path / "cache")
    pool.submit(0, generated(say.format(path=str(file))))
    pool.submit(1, gemm())
    limit = time.monotonic() + 30
    while not (file.exists() and file.read_text()) and time.monotonic() < limit:
        time.sleep(0.02)
    work, workers = Path(pool._work.name), list(pool._threads)
    assert len(workers) == 1
    begin = time.monotonic()
    pool.close()
    pool.close()
    assert time.monotonic() - begin < 5
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
    assert not work.exists()
    assert not any(thread.is_alive() for thread in workers)
    with pytest.raises(WorkerError, match="closed"):
        pool.submit(2, gemm())
    assert pool.ready(10) == []


def test_ready_waits_no_longer_than_asked(tmp_path: Path) -> None:
    with CompilePool(1, 90, tmp_path) as pool:
        assert pool.ready(30) == []  # nothing is pending
        pool.submit(0, generated("import time\ntime.sleep(60)\n"))
        begin = time.monotonic()
        assert pool.ready(0.3) == []
        assert 0.3 <= time.monotonic() - begin < 5
        with pytest.raises(WorkerError, match="1 schedules are pending"):
            pool.compile([gemm()])


def test_launching_finds_what_was_compiled(pool: CompilePool, tmp_path: Path) -> None:
    """Signature, attributes and options are those that a launch on tensors would make: same hash, same cache entry."""
    torch = pytest.importorskip("torch")
    import importlib.util

    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.runtime.cache import get_cache_key
    from triton.runtime.jit import create_function_from_signature

    one = gemm()
    [result] = pool.compile([one])
    path = tmp_path / "somewhere_else.py"
    path.write_text(one.source)
    found = importlib.util.spec_from_file_location("somewhere_else", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    kernel = module.contract
    backend = triton.compiler.make_backend(GPUTarget("cuda", 90, 32))
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    options = {"num_warps": 4, "num_stages": 3, "debug": False, "instrumentation_mode": ""}
    tensors = [torch.empty(1024, dtype=torch.bfloat16) for _ in range(3)]
    assert all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    bound, specialization, _ = binder(*tensors, **options)
    parsed, signature, constexprs, attrs = kernel._pack_args(backend, options, bound, specialization, options)
    source = triton.compiler.ASTSource(kernel, signature, constexprs, attrs)
    key = get_cache_key(source, backend, parsed, env_vars=get_cache_invalidating_env_vars())
    assert result.entries == (entry_name(hashlib.sha256(key.encode()).hexdigest()),)
    assert (pool.cache_dir / result.entries[0]).is_dir()


def test_keep_copies_a_winner(pool: CompilePool, tmp_path: Path) -> None:
    one = gemm()
    [result] = pool.compile([one])
    user = tmp_path / "user"
    assert pool.keep(one.source_hash, user)
    assert pool.keep(one.source_hash, user)
    assert [path.name for path in user.iterdir()] == list(result.entries)
    entry = user / result.entries[0]
    [group] = entry.glob("__grp__*")
    paths = json.loads(group.read_text())["child_paths"]
    assert "contract.cubin" in paths
    assert all(Path(path).parent == entry and Path(path).is_file() for path in paths.values())
    assert not pool.keep("0" * 64, user)


def make_entry(cache: Path, name: str, size: int, age: float) -> Path:
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / "k.cubin").write_bytes(b"x" * size)
    then = time.time() - age
    os.utime(folder, (then, then))
    return folder


def test_trim_drops_the_oldest(tmp_path: Path) -> None:
    for name, age in {"new": 1, "old": 300, "middle": 200, "older": 400}.items():
        make_entry(tmp_path, name, 1000, age)
    assert trim(tmp_path, 4000) == 0
    assert trim(tmp_path, 3900) == 2000  # down to three quarters of the limit
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "new"]
    assert trim(tmp_path / "nowhere", 1) == 0


def test_pool_trims_its_cache(tmp_path: Path) -> None:
    with CompilePool(1, 90, tmp_path, cache_limit_bytes=1000) as pool:
        [result] = pool.compile([gemm()])
        assert result.status is Status.OK
        assert pool.trim() > 100_000
        assert not pool.keep(gemm().source_hash, tmp_path / "user")
    assert list(tmp_path.iterdir()) == []


def test_half_an_entry_is_not_copied(tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "cache", "half", 10, 0)
    assert not copy_entry(entry, tmp_path / "user")
    assert not (tmp_path / "user").exists()


def test_a_worker_that_cannot_even_start_answers_for_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(child: ChildProcess) -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(ChildProcess, "start", start)
    with CompilePool(1, 90, tmp_path) as pool:
        pool.warm()
        pool.submit(0, gemm())
        assert collect(pool, 1, within=10)[0].status is Status.WORKER_CRASH


def test_close_while_warming_leaves_no_thread(tmp_path: Path) -> None:
    pool = CompilePool(2, 90, tmp_path)
    pool.warm()
    workers = list(pool._threads)
    assert len(workers) == 2
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 5
    assert not any(thread.is_alive() for thread in workers)
