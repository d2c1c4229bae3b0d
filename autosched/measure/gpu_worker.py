"""The measuring worker: proves and times generated kernels in a process that may die. The only one that runs them.

:func:`handle` is an entry of ``autosched.measure.child``. Operands, reference answers and flush buffers of an op are
made once and kept between requests. A CUDA error stays with its process: the reply says ``poisoned``, and the parent
starts another worker.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from autosched.errors import InvalidInputError, NoDeviceError
from autosched.measure import vendor
from autosched.measure.base import Baseline, Protocol
from autosched.measure.messages import (
    Compare,
    Compete,
    Device,
    Identify,
    Measure,
    Prove,
    Reply,
    Request,
    Setup,
    Source,
    Vendor,
)
from autosched.measure.proof import (
    Case,
    Kernel,
    Verdict,
    check_timing_output,
    integer_case,
    normal_case,
    prove,
    prove_many,
)
from autosched.measure.rivals import RIVALS
from autosched.measure.rivals.base import Arena, compete
from autosched.measure.telemetry import Telemetry
from autosched.measure.tensors import Guarded, allocate, prepare_workspace
from autosched.measure.timing import GpuTimer, Launch, Timer
from autosched.record import Status
from autosched.sketches.builders import build
from autosched.sketches.op import Op
from autosched.sketches.target import reported

RECHECK_LAUNCHES = 10
"""Launches of the full check that a timing below the physical floor gets before it is repeated."""


def handle(payload: bytes) -> bytes:
    """Answer one request, both as MessagePack."""
    request = msgspec.msgpack.decode(payload, type=Request)
    return msgspec.msgpack.encode(_session().answer(request))


@functools.cache
def _session() -> Session:
    """The one session of this process."""
    return Session()


class Operands:
    """Everything that is made once for an op.

    Args:
        op: What is computed.
        protocol: Seed and number of proof launches.
        device: Where the tensors live.
    """

    def __init__(self, op: Op, protocol: Protocol, device: str) -> None:
        self.op, self.protocol, self.device = op, protocol, device
        self.proofs: list[Case] = [
            integer_case(op, device, protocol.seed, launch) for launch in range(protocol.proof_launches)
        ]
        self.timing: Case = normal_case(op, device, protocol.seed)
        self.out: Guarded = allocate(op.output, device)

    def prove(self, kernel: Kernel, launches: int) -> Verdict:
        """Proof on the kept operands first, then on fresh ones."""
        seed = self.protocol.seed
        return prove(self.op, kernel, device=self.device, seed=seed, launches=launches, cases=self.proofs, out=self.out)


class Session:
    """State of a worker between requests.

    Args:
        device_type: ``cuda``; tests use ``cpu``.
        make_timer: Makes what times from protocol and device; by default a :class:`GpuTimer`.
    """

    def __init__(self, device_type: str = "cuda", make_timer: Callable[[Protocol, str], Timer] | None = None) -> None:
        self._type = device_type
        self._make_timer = make_timer or self._gpu_timer
        self._telemetry = Telemetry()
        self._operands: Operands | None = None
        self._timer: Timer | None = None
        self._setup: Setup | None = None
        self._compiled = 0
        if device_type == "cuda":
            _count_compilations(self._on_compile)

    def answer(self, request: Request) -> Reply:
        """The answer to one request; what a kernel does wrong is a value, anything else an exception."""
        begin = time.monotonic()
        if isinstance(request, Identify):
            return self._identify(request)
        if isinstance(request, Setup):
            self._set_up(request)
            return Reply(seconds=time.monotonic() - begin)
        before = self._compiled
        try:
            reply = self._act(request)
        except Exception as error:
            status, poisoned = classify(error, self._synchronize)
            reply = Reply(status=status, error=f"{type(error).__name__}: {error}"[:2000], poisoned=poisoned)
        telemetry = {
            **reply.telemetry,
            **self._telemetry.read(),
            "compiled_in_worker": float(self._compiled - before),
        }
        return msgspec.structs.replace(reply, seconds=time.monotonic() - begin, telemetry=telemetry)

    def _act(self, request: Measure | Prove | Compare | Compete | Vendor) -> Reply:
        if isinstance(request, Measure):
            return self._measure(request.source)
        if isinstance(request, Prove):
            operands = self._ready()[0]
            kernels = [self._load(source) for source in request.sources]
            seed = operands.protocol.seed + 1
            verdicts = prove_many(operands.op, kernels, device=self._device, seed=seed, launches=request.launches)
            return Reply(errors=tuple("" if v.ok else f"{Status.WRONG_RESULT}: {v.reason}" for v in verdicts))
        if isinstance(request, Compare):
            return self._compare(request)
        if isinstance(request, Compete):
            return self._compete(request)
        return self._vendor()

    def _measure(self, source: Source) -> Reply:
        """Prove, time, check the timed output; below the floor, once more with a longer proof."""
        operands, timer, setup = self._ready()
        kernel = self._load(source)
        telemetry: dict[str, float | str] = {}
        samples: list[float] = []
        for launches in (setup.protocol.proof_launches, RECHECK_LAUNCHES):
            verdict = operands.prove(kernel, launches)
            if verdict.ok:
                samples, verdict = self._time(kernel)
            if not verdict.ok:
                return Reply(status=Status.WRONG_RESULT, error=verdict.reason)
            if statistics.median(samples) >= setup.floor_us:
                break
        else:
            error = (
                f"median of {statistics.median(samples):.2f} us is below the physical floor of {setup.floor_us:.2f} us"
            )
            return Reply(status=Status.BELOW_FLOOR, error=error)
        anchor = timer.anchor_us()
        if anchor is not None:
            telemetry["anchor_us"] = anchor
        return Reply(samples_us=tuple(samples), telemetry=telemetry)

    def _time(self, kernel: Kernel) -> tuple[list[float], Verdict]:
        """Samples in microseconds, and what the last launch's output looks like."""
        operands, timer, _ = self._ready()
        workspace = kernel.workspace(self._device)
        operands.out.poison()
        launch = self._launch(kernel, operands.timing, operands.out, workspace)
        # poisoned before each flush: what a timed launch does not write is not there
        samples = timer.time((launch, operands.out.poison))
        return samples, check_timing_output(operands.op, operands.timing, operands.out, workspace)

    def _launch(self, kernel: Kernel, case: Case, out: Guarded, workspace: Guarded | None) -> Callable[[], object]:
        """What launches a kernel again and again; zeros that it was promised it has to leave itself."""
        if workspace is None:
            return lambda: kernel.launch(*case.tensors, out.tensor, workspace=None)
        prepare_workspace(workspace)
        return lambda: kernel.launch(*case.tensors, out.tensor, workspace=workspace.tensor)

    def _compare(self, request: Compare) -> Reply:
        operands, timer, _ = self._ready()
        op = operands.op
        launches = [self._launch_apart(source) for source in request.sources]
        run = vendor.vendor(op)
        with vendor.precision(op, reduced=False):
            found = timer.blocks((lambda: run(operands.timing.tensors, operands.out.tensor), None), launches)
        return Reply(blocks=found.kept, drift=found.drift)

    def _launch_apart(self, source: Source) -> Launch:
        """Launch of a proved kernel on the timing data, with an output and a workspace of its own."""
        operands, _, _ = self._ready()
        kernel = self._load(source)
        out = allocate(operands.op.output, self._device)
        return self._launch(kernel, operands.timing, out, kernel.workspace(self._device)), None

    def _compete(self, request: Compete) -> Reply:
        operands, timer, setup = self._ready()
        op = operands.op
        arena = Arena(op, operands.timing, operands.out, Path(setup.folder), self._synchronize)
        with vendor.precision(op, reduced=False):
            found, rivals = compete(arena, RIVALS, request.rivals, self._launch_apart(request.source), timer)
        return Reply(blocks=found.kept, drift=found.drift, rivals=rivals)

    def _vendor(self) -> Reply:
        operands, timer, _ = self._ready()
        run = vendor.vendor(operands.op)
        samples = []
        for reduced in (False, True):
            with vendor.precision(operands.op, reduced=reduced):
                samples.append(timer.time((lambda: run(operands.timing.tensors, operands.out.tensor), None)))
        exact, default = samples
        baseline = Baseline(
            name=vendor.vendor_name(operands.op),
            latency_us=statistics.median(exact),
            samples_us=tuple(exact),
            default_us=statistics.median(default),
        )
        return Reply(baseline=baseline)

    def _identify(self, request: Identify) -> Reply:
        import torch

        if not torch.cuda.is_available():
            raise NoDeviceError("no CUDA device is there", "use recorded measurements, or a machine with a GPU")
        if request.device >= torch.cuda.device_count():
            raise NoDeviceError(f"device {request.device} of {torch.cuda.device_count()}", "choose a smaller index")
        properties: Any = torch.cuda.get_device_properties(request.device)
        self._telemetry = Telemetry(str(properties.uuid), request.device)
        telemetry = self._telemetry.read()
        device = Device(
            name=properties.name,
            capability=properties.major * 10 + properties.minor,
            reported=reported(properties),
            uuid=str(telemetry.get("gpu_uuid", "") or properties.uuid),
            max_clock_mhz=self._telemetry.max_clock_mhz(),
        )
        return Reply(device=device, telemetry=telemetry)

    def _set_up(self, request: Setup) -> None:
        """Make operands and timer; the old operands go first, since both may not fit."""
        op = build(request.spec)
        if self._timer is None or self._setup is None or request.protocol != self._setup.protocol:
            self._operands = self._timer = None
            self._setup = request
            self._timer = self._make_timer(request.protocol, self._device)
        self._setup, self._operands = request, None
        self._operands = Operands(op, request.protocol, self._device)

    def _ready(self) -> tuple[Operands, Timer, Setup]:
        if self._operands is None or self._timer is None or self._setup is None:
            raise InvalidInputError("no op is set up", "send Setup first")
        return self._operands, self._timer, self._setup

    def _load(self, source: Source) -> Kernel:
        """Write the generated module to a file named by its hash (Triton reads the source from there), import it."""
        _, _, setup = self._ready()
        name = f"autosched_{source.hash}"
        path = Path(setup.folder, f"{name}.py")
        if not path.exists():
            path.write_text(source.text)
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return Kernel(module.launch, source.workspace_bytes, source.workspace_zeroed)

    @property
    def _device(self) -> str:
        return self._type if self._setup is None or self._type == "cpu" else f"{self._type}:{self._setup.device}"

    def _gpu_timer(self, protocol: Protocol, device: str) -> Timer:
        import torch

        torch.cuda.set_device(device)
        return GpuTimer(protocol, torch.device(device), self._telemetry)

    def _synchronize(self) -> None:
        if self._type == "cuda":
            import torch

            torch.cuda.synchronize()

    def _on_compile(self, *, cache_hit: bool, **_: Any) -> None:
        self._compiled += not cache_hit


def classify(error: Exception, synchronize: Callable[[], None]) -> tuple[Status, bool]:
    """The status that an exception means, and whether the device is lost to this process.

    Args:
        error: What a launch or a check raised.
        synchronize: Waits for the device; raises if it is lost.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    triton = any(kind.__module__.partition(".")[0] == "triton" for kind in type(error).__mro__)
    try:
        synchronize()
    except Exception:
        return Status.LAUNCH_ERROR, True
    if kinds & {"OutOfResources", "OutOfMemoryError"}:
        return Status.OUT_OF_RESOURCES, False
    if triton:
        return Status.COMPILE_ERROR, False
    return Status.LAUNCH_ERROR, False


def _count_compilations(listener: Callable[..., None]) -> None:
    """Have Triton tell ``listener`` of each kernel, with ``cache_hit`` saying whether its cache held it."""
    from triton import knobs

    knobs.compilation.listener = listener
