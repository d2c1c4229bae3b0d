"""What people see: tables of tuning results, logs and installations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autosched.sketches.op import Op

if TYPE_CHECKING:
    from autosched.cli.doctor import Report
    from autosched.cli.replay import Summary, Workload
    from autosched.result import TuningResult

_SOURCES = {
    "measured": "measured on this machine's {device}",
    "recorded": "replayed from measurements recorded on {device}",
    "synthetic": "synthetic figures for {device}",
    "predicted": "predicted for {device}, not measured",
}
_MINUTE = 60.0
_US_PER_MS = 1000.0
_FEW = 5
_TOLD = 0.05  # seconds of a phase from which it is worth a word


def microseconds(value: float) -> str:
    """A latency in words: four digits that count."""
    if value >= 100 * _US_PER_MS:
        return f"{value / _US_PER_MS:.4g} ms"
    return f"{value:.4g} us" if value < _US_PER_MS else f"{value:.0f} us"


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"


def counts(by_kind: Mapping[str, int]) -> str:
    """Numbers by kind, most frequent first; ``none`` if there are none."""
    order = sorted(by_kind.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n} {kind}" for kind, n in order) or "none"


def rows(lines: Iterable[tuple[str, str | Text]]) -> Table:
    """A label and what belongs to it, a line each."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in lines:
        table.add_row(label, Text(value) if isinstance(value, str) else value)
    return table


def op_title(op: Op, layout: str = "") -> str:
    """An op in words: name, sizes, type, layout, epilogue."""
    sizes = " ".join(f"{name}={size}" for name, size in op.loops.items())
    steps = "+".join(step.kind for step in op.epilogue)
    return " ".join(part for part in (op.name, sizes, op.operands[0].dtype.name, layout, steps) if part)


def schedule(knobs: Mapping[str, int | str]) -> str:
    """A schedule's knobs in words, without the sketch's name."""
    return " ".join(f"{name}={value}" for name, value in knobs.items() if name != "sketch")


def tuning(result: TuningResult, title: str, saved: Path | None = None, *, interrupted: bool = False) -> RenderableType:
    """The outcome of a tuning run.

    Args:
        result: The outcome.
        title: What was tuned.
        saved: Where the kernel's module was written.
        interrupted: Whether Ctrl-C ended it.
    """
    source = _SOURCES.get(result.origin, result.origin + " on {device}").format(device=result.device)
    lines: list[tuple[str, str | Text]] = [("device", source), ("status", _status(result, interrupted=interrupted))]
    if result.schedule is not None:
        lines += _best(result)
    if result.reason and result.status != "all_failed":
        lines.append(("reason", result.reason))
    if result.failures:
        lines.append(("failures", counts(result.failures)))
        lines += [("", f"{n} x {text}") for text, n in result.errors]
    if result.seconds:
        phases = ", ".join(
            f"{name} {duration(s)}" for name, s in result.seconds.items() if name != "total" and s >= _TOLD
        )
        total = duration(result.seconds.get("total", 0.0))
        lines.append(("time", f"{total} ({phases})" if phases else total))
    if result.busy:
        lines.append(("busy", ", ".join(f"{name} {share:.0%}" for name, share in result.busy.items())))
    if result.prequential is not None:
        lines.append(("model", f"foretold the order of {result.prequential:.0%} of the pairs of trials"))
    if result.log:
        lines.append(("log", result.log))
    if saved is not None:
        lines.append(("saved", f"{saved}, a module that imports only torch and triton"))
    return Group(Text(title, style="bold"), rows(lines))


def _status(result: TuningResult, *, interrupted: bool) -> Text:
    style = {"tuned": "green", "partial": "yellow"}.get(result.status, "red")
    words = {"all_failed": "all_failed: no schedule was valid"}.get(result.status, result.status)
    if interrupted:
        words += ", interrupted"
    trials = f" after {result.trials} trials" if result.trials else ", no trials"
    compiled = f", {result.compiled} compiled" if result.origin == "measured" else ""
    return Text.assemble((words, style), trials + compiled)


def _best(result: TuningResult) -> list[tuple[str, str | Text]]:
    lines: list[tuple[str, str | Text]] = []
    assert result.schedule is not None
    if result.latency_us is not None:
        rate = "" if result.tflops is None else f", {result.tflops:.1f} TFLOP/s"
        lines.append(("best", Text(microseconds(result.latency_us) + rate, style="bold green")))
    if result.fraction_of_recorded_best is not None:
        lines.append(("", f"{result.fraction_of_recorded_best:.3f} of the best that is recorded"))
    if result.baseline_us is not None:
        lines.append(("vendor", f"{result.baseline_name} {microseconds(result.baseline_us)}{_ratio(result)}"))
    lines += [("sketch", result.schedule.sketch.name), ("schedule", schedule(result.schedule.to_json()))]
    return lines


def _ratio(result: TuningResult) -> str:
    if result.speedup is None:
        return ""
    words = f"; the best is {result.speedup:.3f} x as fast"
    if result.interval is not None:
        low, high = result.interval
        words += f" (95% interval {low:.3f} to {high:.3f}{', a tie' if low <= 1 <= high else ''})"
    if result.break_even_calls is not None and result.origin == "measured":
        words += f"; tuning pays off after {result.break_even_calls:,} calls"
    return words


def log_summary(summary: Summary) -> RenderableType:
    """What logs hold, and the best of each workload."""
    lines = [
        (
            "files",
            ", ".join(str(file) for file in summary.files) if len(summary.files) <= _FEW else str(len(summary.files)),
        ),
        ("records", f"{summary.records} in {summary.sessions} sessions: {counts(summary.status_counts)}"),
    ]
    if summary.crashed:
        lines.append(("crashed", f"{summary.crashed} trials were started and never finished"))
    if summary.damaged:
        lines.append(("damaged", f"{len(summary.damaged)} lines or files were skipped"))
        lines += [("", f"{d.path}:{d.line}: {d.reason}") for d in summary.damaged[:_FEW]]
        if len(summary.damaged) > _FEW:
            lines.append(("", f"and {len(summary.damaged) - _FEW} more; --json names them all"))
    if summary.stale.stale:
        lines.append(
            (
                "stale",
                f"{summary.stale.stale} of {summary.stale.checked}: today's generator writes other source",
            )
        )
    parts: list[RenderableType] = [rows(lines)]
    for workload in summary.workloads:
        parts += [Text(), Text(f"{workload.key} on {workload.device}", style="bold"), _workload(workload)]
    return Group(*parts)


def _workload(workload: Workload) -> RenderableType:
    lines: list[tuple[str, str | Text]] = [
        ("rows", f"{workload.records} of {workload.schedules} schedules: {counts(workload.status_counts)}")
    ]
    best = workload.best
    if best is None:
        lines.append(("best", Text("no row is valid", style="red")))
    else:
        rate = "" if best.tflops is None else f", {best.tflops:.1f} TFLOP/s"
        lines.append(("best", Text(microseconds(best.latency_us) + rate, style="green")))
    if workload.vendor_us is not None:
        ratio = "" if workload.ratio is None else f"; the best is {workload.ratio:.3f} x as fast"
        lines.append(("vendor", f"{workload.vendor} {microseconds(workload.vendor_us)}{ratio}"))
    if best is not None:
        lines += [("sketch", str(best.schedule.get("sketch", ""))), ("schedule", schedule(best.schedule))]
    return rows(lines)


def installation(report: Report) -> RenderableType:
    """What is installed, which GPU there is, and what would work."""
    packages = ", ".join(f"{name} {version}" for name, version in report.versions.items() if version)
    missing = [name for name, version in report.versions.items() if not version]
    lines: list[tuple[str, str | Text]] = [
        ("autosched", f"{report.autosched}, Python {report.python} on {report.platform}"),
        ("packages", packages),
    ]
    if missing:
        lines.append(("missing", Text(", ".join(missing), style="red")))
    for gpu in report.found.gpus:
        capability = f"compute capability {gpu.capability // 10}.{gpu.capability % 10}"
        served = "" if gpu.served else ", not served"
        lines.append(("GPU", f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, {capability}{served}"))
    if not report.found.gpus:
        lines.append(("GPU", Text(report.found.problem, style="yellow")))
    if report.found.cuda:
        lines.append(("driver", f"{report.found.driver or 'version unknown'}, serves CUDA up to {report.found.cuda}"))
    lines.append(("torch's CUDA", report.torch_cuda or "none: torch is a CPU build or not installed"))
    for name, folder in report.paths.items():
        lines.append((name, folder))
    for device, folder in report.recorded.items():
        lines.append(("recorded", f"{device}, in {folder}"))
    if report.problem:
        lines.append(("problem", Text(report.problem, style="red")))
    works: list[tuple[str, str | Text]] = []
    for check in report.works:
        mark = Text("yes", style="green") if check.works else Text("no", style="red")
        works.append((check.name, Text.assemble(mark, f", {check.why}" if check.why else "")))
    return Group(rows(lines), Text(), Text("What would work", style="bold"), rows(works))
