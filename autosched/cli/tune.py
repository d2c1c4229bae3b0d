"""``autosched tune``: what the options mean, the run with its progress, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.cli import render
from autosched.cli.errors import Exit
from autosched.cli.measurers import open_measurer, parse_place
from autosched.cli.output import Output
from autosched.cli.progress import TuningProgress
from autosched.errors import InvalidInputError, TuningInterrupted, UsageError
from autosched.search import check_strategy
from autosched.sketches.builders import build_named

if TYPE_CHECKING:
    from autosched.result import TuningResult


@dataclass(frozen=True)
class TuneOptions:
    """The options of ``autosched tune`` as they were given.

    Attributes:
        op: Name of the operator.
        shape: ``4096,4096,4096`` or ``M=4096,N=4096,K=4096``.
        dtype: Element type of the inputs.
        layout: Layout of the inputs, empty for the op's usual one.
        epilogue: ``bias,gelu``; empty for none.
        scales: ``tensor``, ``row_column`` or ``block``; empty for none.
        budget: Trials.
        seconds: Time after which no further trial begins; ``None`` for no limit.
        on: Where to measure.
        seed: Of the search.
        strategy: Of the search.
        log: Where trials are kept; ``None`` the data folder.
        no_log: Keep no log.
        resume: Continue the session that ``log`` holds.
        save: Where the kernel's module is written; ``None`` nowhere.
    """

    op: str
    shape: str
    dtype: str = "bf16"
    layout: str = ""
    epilogue: str = ""
    scales: str = ""
    budget: int = 64
    seconds: float | None = None
    on: str = "auto"
    seed: int = 0
    strategy: str = "annealing"
    log: Path | None = None
    no_log: bool = False
    resume: bool = False
    save: Path | None = None


def tune(options: TuneOptions, output: Output) -> int:
    """Tunes and prints the result. Everything that was asked for is checked before any work is done.

    Returns:
        The exit code.
    """
    from autosched.budget import Budget
    from autosched.tune import tune_op

    place = parse_place(options.on)
    op = build_named(
        options.op,
        parse_shape(options.shape),
        dtype=options.dtype,
        layout=options.layout or None,
        epilogue=_words(options.epilogue),
        scales=options.scales,
    )
    budget = Budget(trials=options.budget, seconds=options.seconds)
    _check(options)
    title = render.op_title(op, str(op.spec.get("layout", "")))
    unmeasured = budget.trials == 0
    with open_measurer(place, (lambda text: None) if unmeasured else output.notice) as measurer:
        if unmeasured:
            output.notice(f"Budget 0: the cost model's own pick for {measurer.target.name}; nothing is measured.")
        with TuningProgress(output.err, f"{title} on {measurer.target.name}", lines=not output.json) as progress:
            try:
                result = tune_op(
                    op,
                    budget=budget,
                    target=measurer.target if unmeasured else None,
                    measurer=None if unmeasured else measurer,
                    strategy=options.strategy,
                    log=False if options.no_log else options.log,
                    resume=options.resume,
                    seed=options.seed,
                    progress=progress,
                )
                code = Exit.NOTHING_VALID if result.status == "all_failed" else Exit.DONE
            except TuningInterrupted as interrupted:
                result = interrupted.result
                code = Exit.INTERRUPTED
    saved = _save(result, options.save)
    output.result(result.to_dict(), lambda: render.tuning(result, title, saved, interrupted=code is Exit.INTERRUPTED))
    return int(code)


def parse_shape(text: str) -> Sequence[int | Sequence[int]] | Mapping[str, int | Sequence[int]]:
    """``4096,4096,4096`` as sizes in order, ``M=4096,N=4096,K=4096`` as sizes by name; ``2x1`` is two in one.

    Raises:
        InvalidInputError: It is neither.
    """
    remedy = "give whole numbers such as 4096,4096,4096 or M=4096,N=4096,K=4096"
    named = [part.partition("=") for part in text.split(",")]
    try:
        sizes = [_size(size if equals else name) for name, equals, size in named]
    except ValueError:
        raise InvalidInputError(f"--shape {text!r} is no list of sizes", remedy) from None
    names = [name.strip() for name, equals, _ in named if equals]
    if not names:
        return sizes
    if len(names) != len(sizes) or len(set(names)) != len(names):
        raise InvalidInputError(f"--shape {text!r} names only some sizes, or one twice", remedy)
    return dict(zip(names, sizes, strict=True))


def _size(text: str) -> int | tuple[int, ...]:
    parts = tuple(int(part) for part in text.split("x"))
    return parts if len(parts) > 1 else parts[0]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check(options: TuneOptions) -> None:
    check_strategy(options.strategy)
    if options.log is not None and options.no_log:
        raise UsageError(f"--no-log beside --log {options.log}", "give one of them")
    if options.resume and options.log is None:
        raise UsageError("--resume without --log", "name the log of the run to continue")
    if options.seed < 0:
        raise InvalidInputError(f"--seed {options.seed}", "give 0 or more")
    if options.save is not None:
        if options.save.is_dir():
            raise InvalidInputError(f"--save {options.save} is a folder", "name a file, such as kernel.py")
        if not options.save.absolute().parent.is_dir():
            raise InvalidInputError(f"--save {options.save}: its folder is not there", "make the folder first")


def _save(result: TuningResult, path: Path | None) -> Path | None:
    if path is None or result.schedule is None:
        return None
    return result.save(path)
