"""The display of a run while it goes: the best so far, the vendor library, failures by kind, the time left."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autosched.cli.render import counts, duration, microseconds, rows

if TYPE_CHECKING:
    from autosched.progress import Progress

_PHASES = {
    "search": "choosing what to measure",
    "measure": "compiling and measuring",
    "shoot-out": "comparing the finalists",
    "done": "done",
}


def seconds_left(progress: Progress) -> float | None:
    """Seconds until the budget is spent, by the pace so far; ``None`` before the first trial."""
    left = []
    if progress.trials is not None and progress.trial:
        left.append(progress.seconds / progress.trial * (progress.trials - progress.trial))
    if progress.budget_seconds is not None:
        left.append(progress.budget_seconds - progress.seconds)
    return max(0.0, min(left)) if left else None


class TuningProgress:
    """A live display on a terminal; elsewhere a line whenever the best improves. Called with each ``Progress``.

    Args:
        console: Where to show it.
        title: What is tuned, and where.
        lines: Print lines where the console is no terminal.
    """

    def __init__(self, console: Console, title: str, *, lines: bool = True) -> None:
        self.console = console
        self.title = title
        self.lines = lines
        self.now: Progress | None = None
        self._at = time.monotonic()
        self._shown: float | None = None
        self._live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Shows it."""
        self.now = progress
        self._at = time.monotonic()
        if self.lines and not self.console.is_terminal and progress.best_us not in (None, self._shown):
            self._shown = progress.best_us
            self.console.print(Text(f"trial {progress.trial}: best {rate(progress)}"), soft_wrap=True)

    def render(self) -> RenderableType:
        """The display as it is now."""
        now = self.now
        since = time.monotonic() - self._at
        if now is None:
            return Text(f"{self.title}: starting, {duration(since)}")
        total = now.trials or now.trial or 1
        head = Table.grid(padding=(0, 1))
        of = f" of {now.trials}" if now.trials is not None else ""
        head.add_row(
            ProgressBar(total=total, completed=now.trial, width=30),
            Text(f"{now.trial}{of} trials, {_PHASES.get(now.phase, now.phase)}"),
        )
        left = seconds_left(now)
        rest = f", about {duration(max(0.0, left - since))} left" if left else ""
        body = rows(
            [
                ("best", rate(now)),
                ("failures", counts(now.failures)),
                ("time", f"{duration(now.seconds + since)}{rest}"),
            ]
        )
        return Group(Text(self.title, style="bold"), head, body)


def rate(progress: Progress) -> str:
    """The best so far in words, with the vendor library's time over it."""
    if progress.best_us is None:
        return "none yet"
    words = microseconds(progress.best_us)
    if progress.best_tflops is not None:
        words += f", {progress.best_tflops:.1f} TFLOP/s"
    if progress.baseline_us is not None:
        words += f", {progress.baseline_us / progress.best_us:.3f} x the vendor library"
    return words
