"""Compiling generated kernels in parallel, in processes that load Triton but not torch and need no GPU."""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
import queue
import sys
import tempfile
import threading
import time
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from autosched.errors import WorkerError
from autosched.features.compiled import compiled_features
from autosched.measure.cache import copy_entry, entry_name, trim
from autosched.measure.process import ChildCancelled, ChildProcess, ChildTimeout
from autosched.record import Status
from autosched.sketches.codegen import Generated, KernelSpec

_ERROR_CHARACTERS: Final = 2000
_TRIM_EVERY: Final = 64
_DIVISIBLE: Final = ("tt.divisibility", 16)
_WARP_SIZE: Final = 32


class CompileResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of compiling one schedule.

    Attributes:
        status: ``ok``, ``compile_error``, ``compile_timeout``, ``out_of_resources``, ``invalid`` or ``worker_crash``.
        error: The text of the failure; empty if ``ok``.
        features: ``features.compiled.COMPILED`` of the kernels; there unless a kernel did not compile.
        seconds: That a worker spent on it.
        entries: Names of the folders of Triton's cache that hold the kernels.
    """

    status: Status
    error: str = ""
    features: dict[str, float] = {}
    seconds: float = 0.0
    entries: tuple[str, ...] = ()


#: A source without kernels whose execution imports what compiling needs.
_WARM_UP = "import triton\nimport triton.language\nimport triton.backends.nvidia.compiler\n"


class _Task(msgspec.Struct, frozen=True):
    """A request to the child; the fields are the arguments of :func:`compile_generated`."""

    source: str
    kernels: tuple[KernelSpec, ...]
    capability: int
    shared_limit: int | None
    work_dir: str


def answer(payload: bytes) -> bytes:
    """Entry of the child process: a task in, a result out, both MessagePack."""
    task = msgspec.msgpack.decode(payload, type=_Task)
    result = compile_generated(
        task.source, task.kernels, task.capability, shared_limit=task.shared_limit, work_dir=Path(task.work_dir)
    )
    return msgspec.msgpack.encode(result)


def compile_generated(
    source: str,
    kernels: Sequence[KernelSpec],
    capability: int,
    *,
    shared_limit: int | None = None,
    work_dir: Path | None = None,
) -> CompileResult:
    """Compile the kernels of one schedule, as launching them would, into Triton's cache. Runs in a child process.

    Args:
        source: The generated module. It is executed, so it must come from the generator.
        kernels: What to compile, for the very specialisation that will be launched.
        capability: Compute capability, major * 10 + minor.
        shared_limit: Bytes of shared memory that a CTA can have; not checked if ``None``.
        work_dir: Where the module's file lies meanwhile; the folder of temporary files if ``None``.

    Returns:
        Status ``ok``; ``compile_error`` with the text of the exception, whichever it was; ``out_of_resources`` above
        ``shared_limit``; or ``invalid`` with the name of a hazard that shows only in the compiled kernel.
    """
    begin = time.monotonic()
    folder = Path(tempfile.gettempdir()) if work_dir is None else work_dir
    try:
        with _loaded(source, folder) as module:
            compiled = [_compile_kernel(getattr(module, spec.name), spec, capability) for spec in kernels]
            metadata = [kernel.metadata._asdict() for kernel in compiled]
            features = compiled_features([kernel.asm for kernel in compiled], metadata)
        entries = tuple(entry_name(values["hash"]) for values in metadata)
    except Exception as error:  # Triton, ptxas and the generated module raise whatever they like
        seconds = time.monotonic() - begin
        return CompileResult(status=Status.COMPILE_ERROR, error=_explain(error), seconds=seconds)
    status, text = _verdict(features, shared_limit, {name for spec in kernels for name in spec.shows})
    return CompileResult(
        status=status, error=text, features=features, seconds=time.monotonic() - begin, entries=entries
    )


def _compile_kernel(function: Any, spec: KernelSpec, capability: int) -> Any:
    """Triton's compiled kernel; the source, attributes and options are those that a launch makes of its arguments."""
    import triton
    from triton.backends.compiler import GPUTarget

    attributes = {(index,): [list(_DIVISIBLE)] for index in sorted(spec.aligned)}
    source = triton.compiler.ASTSource(fn=function, signature=dict(spec.signature), constexprs={}, attrs=attributes)
    options = {"num_warps": spec.num_warps, "num_stages": spec.num_stages, **spec.options}
    return triton.compile(source, target=GPUTarget("cuda", capability, _WARP_SIZE), options=options)


def _verdict(features: dict[str, float], shared_limit: int | None, shows: set[str]) -> tuple[Status, str]:
    """Status and error of kernels that compiled; ``shows`` names features without which a choice took no effect."""
    shared = int(features["shared_bytes"])
    if shared_limit is not None and shared > shared_limit:
        return Status.OUT_OF_RESOURCES, f"shared memory: {shared} B a CTA, the device has {shared_limit} B"
    if features["register_a_hazard"]:
        return Status.INVALID, (
            "register-A hazard: wgmma groups that read their A operand from registers are still in flight when the "
            "loop's next iteration overwrites these"
        )
    if missing := sorted(name for name in shows if not features[name]):
        return Status.INVALID, f"asked for and not applied by the compiler: {', '.join(missing)}"
    return Status.OK, ""


@contextlib.contextmanager
def _loaded(source: str, folder: Path) -> typing.Iterator[types.ModuleType]:
    """The module of a source, whose file is there (Triton reads the kernels from it) until the block ends."""
    digest = hashlib.sha256(source.encode()).hexdigest()
    path = folder / f"kernel_{digest[:32]}_{os.getpid()}.py"
    path.write_text(source)
    module = types.ModuleType(f"autosched_generated_{digest[:32]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules[module.__name__]
        linecache.cache.pop(str(path), None)
        path.unlink(missing_ok=True)


def _explain(error: BaseException) -> str:
    """Types and messages of an exception and its causes, shortened in the middle to 2,000 characters."""
    parts: list[str] = []
    link: BaseException | None = error
    while link is not None:
        text = str(link).strip()
        if not any(text and text in part for part in parts):
            parts.append(f"{type(link).__name__}: {text}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return _shorten("\ncaused by ".join(parts))


def _shorten(text: str) -> str:
    if len(text) <= _ERROR_CHARACTERS:
        return text
    half = (_ERROR_CHARACTERS - 5) // 2
    return f"{text[:half]}\n...\n{text[-half:]}"


class CompilePool:
    """Compiles schedules in parallel.

    One thread a worker keeps its child process busy, ends it at the time-out and replaces it; results come in the
    order in which they are done.

    Args:
        workers: Number of child processes; one fewer than there are cores, but at least one, if ``None``.
        capability: Compute capability to compile for, major * 10 + minor.
        cache_dir: Triton's cache of the children, for this use alone: its oldest entries are deleted. A folder that
            lasts as long as the pool if ``None``.
        timeout: Seconds for one schedule.
        shared_limit: Bytes of shared memory that a CTA can have; not checked if ``None``.
        cache_limit_bytes: Size above which the oldest entries of the cache are deleted.
        entry: The child's function, for tests.
    """

    def __init__(
        self,
        workers: int | None = None,
        capability: int = 90,
        cache_dir: str | Path | None = None,
        timeout: float = 60.0,
        *,
        shared_limit: int | None = None,
        cache_limit_bytes: int = 4 << 30,
        entry: str = "autosched.measure.compiling:answer",
    ) -> None:
        self.capability = capability
        self.timeout = timeout
        self.workers = max(1, (os.cpu_count() or 2) - 1) if workers is None else max(1, workers)
        self._shared_limit = shared_limit
        self._limit = cache_limit_bytes
        self._entry = entry
        self._work = tempfile.TemporaryDirectory(prefix="autosched-compile-", ignore_cleanup_errors=True)
        self.cache_dir = Path(self._work.name, "cache") if cache_dir is None else Path(cache_dir)
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        self._tasks: queue.SimpleQueue[tuple[int, Generated] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[int, Generated, CompileResult]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._trimming = threading.Lock()
        self._counting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._entries: dict[str, tuple[str, ...]] = {}
        self._pending = 0
        self._returned = 0
        self._warm = False

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pending(self) -> int:
        """Schedules handed over whose results were not returned yet."""
        return self._pending

    def aim(self, capability: int, shared_limit: int | None) -> None:
        """Say what to compile for, before the first schedule is handed over; see the class's arguments."""
        self.capability, self._shared_limit = capability, shared_limit

    def warm(self) -> None:
        """Start every child and have it import triton; returns at once."""
        with self._counting:
            self._warm = True
            for _ in range(self.workers - len(self._threads)):
                self._start_thread()

    def submit(self, identity: int, generated: Generated, /) -> None:
        """Hand over a schedule; returns at once. Any thread may call it.

        Args:
            identity: By which :meth:`ready` names it.
            generated: Its source and kernels.

        Raises:
            WorkerError: The pool is closed.
        """
        if self._stop.is_set():
            raise WorkerError("this compile pool is closed", "open another")
        self._tasks.put((identity, generated))
        with self._counting:
            self._pending += 1
            if len(self._threads) < min(self.workers, self._pending):
                self._start_thread()

    def ready(self, timeout: float = 0.0) -> list[tuple[int, CompileResult]]:
        """What is done since the last call.

        Args:
            timeout: Seconds to wait for a first result; returns at once if nothing is pending.

        Returns:
            Identity and result of each schedule that is done, possibly none.
        """
        found: list[tuple[int, CompileResult]] = []
        limit = time.monotonic() + timeout
        while self._pending:
            try:
                left = 0.0 if found else max(0.0, limit - time.monotonic())
                identity, generated, result = self._results.get(block=left > 0, timeout=left or None)
            except queue.Empty:
                break
            with self._counting:
                self._pending -= 1
            self._entries[generated.source_hash] = result.entries
            found.append((identity, result))
        self._returned += len(found)
        if self._returned >= _TRIM_EVERY:
            self._returned = 0
            self.trim()
        return found

    def compile(self, generated: Sequence[Generated]) -> list[CompileResult]:
        """Compile several schedules and wait; one result each, in the same order. Nothing else may be pending.

        Raises:
            WorkerError: Schedules handed over by :meth:`submit` are pending, or the pool is closed.
        """
        if self._pending:
            raise WorkerError(f"{self._pending} schedules are pending", "take their results with ready() first")
        for index, one in enumerate(generated):
            self.submit(index, one)
        results: dict[int, CompileResult] = {}
        while len(results) < len(generated):
            results.update(self.ready(1.0))
        return [results[index] for index in range(len(generated))]

    def trim(self) -> int:
        """Delete the oldest entries of the cache if it is larger than its limit; returns the bytes deleted."""
        return trim(self.cache_dir, self._limit)

    def keep(self, source_hash: str, user_cache_dir: str | Path) -> bool:
        """Copy a schedule's compiled kernels to another cache of Triton, where a launch finds them.

        Args:
            source_hash: Of a schedule whose result :meth:`ready` has returned.
            user_cache_dir: Folder of that cache; made if it is not there.

        Returns:
            Whether all of them are there now; not so if it never compiled here or the cache dropped it meanwhile.
        """
        names = self._entries.get(source_hash, ())
        return bool(names) and all([copy_entry(self.cache_dir / name, Path(user_cache_dir)) for name in names])

    def close(self) -> None:
        """End every child, drop what is pending; may be called more than once."""
        self._stop.set()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._pending = 0
        self._work.cleanup()

    def _start_thread(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._work_off, args=(number,), name=f"compile-{number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work_off(self, number: int) -> None:
        """One thread: take tasks and have the child answer them until the pool closes."""
        environment = {
            "TRITON_CACHE_DIR": str(self.cache_dir.resolve()),
            "TMPDIR": self._work.name,
            "OMP_NUM_THREADS": "1",
        }
        with contextlib.closing(ChildProcess(self._entry, env=environment, name=f"compile worker {number}")) as child:
            if self._warm:
                with contextlib.suppress(Exception):  # the first task will tell what is wrong
                    task = _Task(_WARM_UP, (), self.capability, None, self._work.name)
                    child.request(msgspec.msgpack.encode(task), self.timeout, self._stop)
            while (item := self._tasks.get()) is not None and not self._stop.is_set():
                identity, generated = item
                try:
                    self._results.put((identity, generated, self._ask(child, generated)))
                except ChildCancelled:
                    return

    def _ask(self, child: ChildProcess, generated: Generated) -> CompileResult:
        """The child's result, or what became of the child; passes on only :class:`ChildCancelled`."""
        task = _Task(generated.source, generated.kernels, self.capability, self._shared_limit, self._work.name)
        begin = time.monotonic()
        try:
            reply = child.request(msgspec.msgpack.encode(task), self.timeout, self._stop)
            result = msgspec.msgpack.decode(reply, type=CompileResult)
            if "PassManager" in result.error:  # MLIR says why on the standard error stream only
                text = _shorten(f"{result.error}\n{child.output_tail()}")
                result = msgspec.structs.replace(result, error=text)
            return result
        except ChildCancelled:
            raise
        except ChildTimeout as error:
            status, text = Status.COMPILE_TIMEOUT, f"not compiled within {error.seconds:g} s"
        except Exception as error:  # the thread must answer for its task, whatever happened
            status, text = Status.WORKER_CRASH, str(error) if isinstance(error, WorkerError) else repr(error)
        return CompileResult(status=status, error=_shorten(text), seconds=time.monotonic() - begin)
