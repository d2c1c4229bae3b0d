"""What tuning gives back: the kernel, its schedule, its latency and the vendor library's beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosched.errors import InvalidInputError, UsageError
from autosched.sketches.codegen import Generated, generate
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch

if TYPE_CHECKING:
    import torch

FORMAT = 1


@dataclass(frozen=True)
class TuningResult:
    """The outcome of a tuning run.

    Attributes:
        op: What was tuned.
        device: Name of the target.
        origin: Where measurements came from: ``measured``, ``recorded`` or ``synthetic``.
        status: ``tuned``; ``partial`` (stopped before its budget with a valid best); ``all_failed``.
        schedule: The choice; ``None`` if nothing valid was found.
        latency_us: Its latency in microseconds; ``None`` where it was not measured (budget 0).
        baseline_name: The vendor library; empty if it was not measured.
        baseline_us: Its latency in microseconds.
        ratio: Vendor time over the choice's time, interleaved where ``interval`` is given; above 1 is faster.
        interval: 95% interval of ``ratio``.
        trials: Schedules sent to the measurer, whatever their status.
        compiled: Kernels compiled.
        failures: Trials by status, without ``ok``.
        errors: The most frequent error texts and how often they came.
        seconds: ``total, search, features, model, compile, measure``; the first three pass in part while a round is
            measured.
        busy: Share of the rounds' time that ``gpu`` and ``compile`` workers worked; empty where nothing was run.
        prequential: Share of the pairs of trials that the model ordered rightly before they were measured.
        fraction_of_recorded_best: On a recorded table, best latency of the table over the choice's.
        reason: Why this schedule was chosen, for a person.
        log: Where the trials are kept; empty if nowhere.
        curve: Best latency in microseconds after each trial; ``None`` before the first valid one.
    """

    op: Op
    device: str
    origin: str
    status: str
    schedule: Schedule | None
    latency_us: float | None = None
    baseline_name: str = ""
    baseline_us: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    trials: int = 0
    compiled: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[str, int]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    prequential: float | None = None
    fraction_of_recorded_best: float | None = None
    reason: str = ""
    log: str = ""
    curve: tuple[float | None, ...] = ()

    @property
    def key(self) -> str:
        """``Op.key()``."""
        return self.op.key()

    @property
    def sketch(self) -> Sketch:
        """The chosen structure; ``print(result.sketch.explain())`` shows its derivation."""
        return self._chosen().sketch

    @property
    def tflops(self) -> float | None:
        """Rate of the choice in TFLOP/s."""
        return None if self.latency_us is None else self.op.flops / self.latency_us / 1e6

    @property
    def speedup(self) -> float | None:
        """Vendor time over the choice's time; above 1 is faster than the vendor library."""
        if self.ratio is not None:
            return self.ratio
        return None if self.latency_us is None or self.baseline_us is None else self.baseline_us / self.latency_us

    @property
    def break_even_calls(self) -> int | None:
        """Calls after which tuning has paid for itself against the vendor library; ``None`` if it never does."""
        if self.latency_us is None or self.baseline_us is None or self.latency_us >= self.baseline_us:
            return None
        return int(self.seconds.get("total", 0.0) * 1e6 / (self.baseline_us - self.latency_us)) + 1

    @cached_property
    def generated(self) -> Generated:
        """The chosen schedule's code."""
        return generate(self.op, self._chosen())

    def source(self) -> str:
        """The choice as a readable, standalone module that imports only triton and torch."""
        return self.generated.source

    def save(self, path: str | Path) -> Path:
        """Writes the module, which imports only triton and torch."""
        target = Path(path)
        target.write_text(self.generated.source, encoding="utf-8")
        return target

    @cached_property
    def kernel(self) -> Kernel:
        """The choice as a function on tensors."""
        return Kernel(self.op, self.generated)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``autosched tune``."""
        best = None
        if self.schedule is not None:
            best = {
                "sketch": self.schedule.sketch.name,
                "schedule": self.schedule.to_json(),
                "latency_us": self.latency_us,
                "tflops": self.tflops,
            }
        baseline = None
        if self.baseline_us is not None:
            baseline = {
                "name": self.baseline_name,
                "latency_us": self.baseline_us,
                "ratio": self.speedup,
                "interval": list(self.interval) if self.interval else None,
            }
        data: dict[str, Any] = {
            "format": FORMAT,
            "op": self.op.name,
            "key": self.key,
            "device": self.device,
            "source": self.origin,
            "status": self.status,
            "trials": self.trials,
            "compiled": self.compiled,
            "best": best,
            "baseline": baseline,
            "failures": self.failures,
            "errors": [{"text": text, "count": n} for text, n in self.errors],
            "seconds": {k: round(v, 4) for k, v in self.seconds.items()},
            "busy": {k: round(v, 4) for k, v in self.busy.items()},
            "prequential": self.prequential,
            "break_even_calls": self.break_even_calls,
            "reason": self.reason,
            "log": self.log or None,
        }
        if self.fraction_of_recorded_best is not None:
            data["fraction_of_recorded_best"] = self.fraction_of_recorded_best
        return data

    def _chosen(self) -> Schedule:
        if self.schedule is None:
            raise InvalidInputError(f"no schedule of {self.key} was valid", "see .failures and .errors")
        return self.schedule


class Kernel:
    """A tuned kernel as a function: ``kernel(a, b, bias=bias, out=out)``."""

    def __init__(self, op: Op, generated: Generated) -> None:
        self.op = op
        self._names = [o.name for o in op.operands]
        self._module: dict[str, Any] | None = None
        self._generated = generated

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, **named: torch.Tensor
    ) -> torch.Tensor:
        """Runs it.

        Args:
            a: First operand, as stored.
            b: Second operand, as stored.
            out: Where the result goes; a new tensor if not given.
            named: The epilogue's operands by name.

        Raises:
            UsageError: An operand is missing or not asked for.
            ValueError: A tensor's shape, strides, dtype or alignment is not what the kernel was tuned for.
        """
        wanted = set(self._names[2:])
        if set(named) != wanted:
            raise UsageError(
                f"operands given by name: {sorted(named)}", f"this kernel takes a, b and {sorted(wanted) or 'no more'}"
            )
        result: torch.Tensor = self._load()["run"](a, b, out=out, **named)
        return result

    def _load(self) -> dict[str, Any]:
        if self._module is None:
            self._module = load_source(self._generated)
        return self._module


def load_source(generated: Generated) -> dict[str, Any]:
    """The namespace of a generated module; its text is registered so that Triton can read it back."""
    import linecache

    name = f"<autosched {generated.source_hash[:16]}>"
    lines = generated.source.splitlines(keepends=True)
    linecache.cache[name] = (len(generated.source), None, lines, name)
    namespace: dict[str, Any] = {"__name__": f"autosched_{generated.source_hash[:16]}"}
    exec(compile(generated.source, name, "exec"), namespace)  # made by generate() from checked values
    return namespace
