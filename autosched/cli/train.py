"""``autosched train``: a cost model from logs, written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from autosched.cli.errors import Exit
from autosched.cli.output import Output
from autosched.cli.render import duration, rows
from autosched.errors import InvalidInputError

if TYPE_CHECKING:
    from autosched.offline.training import Training


def train(logs: Sequence[Path], path: Path, recipe: str, seed: int, output: Output) -> int:
    """Trains a model and writes it. What can be refused is refused before any log is read.

    Returns:
        The exit code.
    """
    from autosched.offline.training import read_logs, run_training

    _check(path)
    contents = read_logs(logs)
    if path.exists() and any(path.samefile(log) for log in contents.files):
        raise InvalidInputError(f"--output {path} is one of the logs", "name another file")
    with output.err.status(f"training on {len(contents)} trials"):
        training = run_training(contents, recipe=recipe, seed=seed)
    training = training.saved(path)
    output.result(training.to_dict(), lambda: view(training))
    return int(Exit.DONE)


def view(training: Training) -> RenderableType:
    """What people get."""
    data = training.to_dict()
    left_out = [
        f"{n} {what}"
        for n, what in (
            (training.failed, "failed"),
            (training.skipped, "are unknown to this version"),
        )
        if n
    ]
    lines: list[tuple[str, str | Text]] = [
        ("model", f"{training.path}, recipe {data['recipe']}, {data['features']} features"),
        ("workloads", f"{training.workloads} iteration spaces"),
        ("trials", f"{training.records}, which are {training.rows} schedules"),
    ]
    if left_out:
        lines.append(("left out", f"trials: {', '.join(left_out)}"))
    if training.damaged:
        lines.append(("damaged", f"{training.damaged} lines or files were skipped; autosched replay names them"))
    lines.append(("time", duration(training.seconds)))
    return Group(Text("Trained", style="bold"), rows(lines))


def _check(path: Path) -> None:
    if path.is_dir():
        raise InvalidInputError(f"--output {path} is a folder", "name a file, such as model.json")
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(f"--output {path}: its folder is not there", "make the folder first")
