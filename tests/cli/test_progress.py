"""The display of a run, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from autosched.cli.progress import TuningProgress, seconds_left
from autosched.cli.render import counts, duration, microseconds
from autosched.progress import Progress


def at(
    trial: int, best_us: float | None = 185.0, *, trials: int | None = 64, seconds_limit: float | None = None
) -> Progress:
    return Progress(
        phase="measure",
        trial=trial,
        trials=trials,
        seconds=2.0 * trial,
        budget_seconds=seconds_limit,
        best_us=best_us,
        best_tflops=None if best_us is None else 2 * 4096**3 / best_us / 1e6,
        baseline_us=190.0,
        failures={"compile_error": 1, "wrong_result": 3},
    )


def test_time_left_is_that_of_the_nearer_limit() -> None:
    assert seconds_left(at(16)) == pytest.approx(96.0)
    assert seconds_left(at(16, seconds_limit=40.0)) == pytest.approx(8.0)
    assert seconds_left(at(16, trials=None, seconds_limit=20.0)) == 0.0
    assert seconds_left(at(0)) is None


def test_display() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    progress = TuningProgress(console, "gemm on H200")
    progress(at(16))
    with console.capture() as captured:
        console.print(progress.render())
    text = captured.get()
    assert "gemm on H200" in text
    assert "16 of 64 trials, compiling and measuring" in text
    assert "185 us, 742.9 TFLOP/s, 1.027 x the vendor library" in text
    assert "3 wrong_result, 1 compile_error" in text
    assert "32 s, about 96 s left" in text
    assert max(map(len, text.splitlines())) <= 80


def test_before_anything_is_known() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    progress = TuningProgress(console, "gemm on H200")
    with console.capture() as captured:
        console.print(progress.render())
        progress(at(0, None))
        console.print(progress.render())
    assert "starting" in captured.get()
    assert "none yet" in captured.get()


def test_a_terminal_gets_it_live_and_nothing_stays() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    with TuningProgress(console, "gemm on H200") as progress:
        progress(at(16))
    assert "gemm on H200" in file.getvalue()
    assert "trial 16" not in file.getvalue()
    assert file.getvalue().rstrip().endswith("\x1b[2K"), "the last lines are erased"


def test_elsewhere_a_line_tells_each_improvement() -> None:
    file = io.StringIO()
    with TuningProgress(Console(file=file, width=80), "gemm on H200") as progress:
        for trial, best in ((1, None), (2, 200.0), (3, 200.0), (4, 190.0)):
            progress(at(trial, best))
    assert [line.split(",")[0] for line in file.getvalue().splitlines()] == [
        "trial 2: best 200 us",
        "trial 4: best 190 us",
    ]
    silent = io.StringIO()
    with TuningProgress(Console(file=silent, width=80), "gemm on H200", lines=False) as progress:
        progress(at(2, 200.0))
    assert silent.getvalue() == ""


def test_figures_in_words() -> None:
    assert [microseconds(v) for v in (9.4321, 185.04, 1587.3, 250_000.0)] == ["9.432 us", "185 us", "1587 us", "250 ms"]
    assert [duration(v) for v in (0.52, 12.4, 125.0)] == ["0.5 s", "12 s", "2 min 5 s"]
    assert counts({}) == "none"
    assert counts({"b": 1, "a": 1, "c": 2}) == "2 c, 1 a, 1 b"
