"""``tune_op``: what is asked for, resolved and checked before any work; then the loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from autosched.budget import Budget
from autosched.errors import StopTuning, TuningInterrupted, UsageError, WorkerError
from autosched.loop import Run
from autosched.measure.base import Measurer
from autosched.measure.local import LocalMeasurer
from autosched.models import CostModel
from autosched.progress import Observer
from autosched.recorded import base_model, shipped_model
from autosched.result import TuningResult
from autosched.search import STRATEGIES, check_strategy
from autosched.session import Session
from autosched.sketches.builders import Shape, build_named
from autosched.sketches.op import Op
from autosched.sketches.target import Target, parse_target
from autosched.tuner import Tuner


def tune_op(
    op: Op | str,
    shape: Shape | None = None,
    budget: int | Budget = 64,
    *,
    dtype: Any = None,
    layout: str | None = None,
    epilogue: Sequence[str] | None = None,
    scales: str | None = None,
    target: Target | str | None = None,
    measurer: Measurer | None = None,
    model: CostModel | None = None,
    strategy: str | None = None,
    log: str | Path | bool | None = None,
    resume: bool = False,
    seed: int = 0,
    callbacks: Sequence[Observer] = (),
    progress: Observer | None = None,
) -> TuningResult:
    """Finds a fast schedule of an operator and proves it right.

    Args:
        op: A name of ``BUILDERS`` (then ``shape`` says its size), or an ``Op``.
        shape: ``(M, N, K)`` for gemm, ``(N, C, H, W, K, R, S, stride, padding)`` for conv2d, or a dict with those
            names (and ``dilation`` and ``groups``).
        budget: Trials, or a ``Budget``; 0 asks the model alone and measures nothing.
        dtype: Element type of the inputs, bf16 if not given.
        layout: Layout of the inputs; ``nn``, ``nhwc`` for convolutions, if not given.
        epilogue: Steps on the result.
        scales: Factors of both inputs, ``tensor``, ``row_column`` or ``block`` (see ``gemm``); none if not given.
        target: The device; the measurer's own if not given.
        measurer: What answers how fast a schedule is; this machine's GPU if not given.
        model: A fitted cost model to start from; the shipped one if not given.
        strategy: Name of a search strategy, ``annealing`` if not given.
        log: Where trials are kept; ``None`` the data folder, ``False`` nowhere.
        resume: Continue the session that the log holds; the budget is then the total.
        seed: Of the search.
        callbacks: Called after each trial and when the phase changes; one may raise ``StopTuning``.
        progress: One more of them, called last.

    Raises:
        UsageError: Shape, dtype, layout, epilogue or scales given beside an ``Op``.
        InvalidInputError: A value that no op or budget has.
        NoDeviceError: No GPU is there and no measurer was given.
        WorkerError: Nothing could be measured at all; later on, the result so far says why it is ``partial``.
        TuningInterrupted: Ctrl-C; it carries the result so far.
    """
    started = time.perf_counter()
    op = _resolve(op, shape, dtype, layout, epilogue, scales)
    budget = budget if isinstance(budget, Budget) else Budget(trials=budget)
    strategy = strategy or "annealing"
    check_strategy(strategy)
    with ExitStack() as stack:
        aim = _aim(target, measurer)
        if budget.trials == 0:
            return _unmeasured(op, aim or stack.enter_context(LocalMeasurer()).target, model, seed)
        if measurer is None:
            measurer = stack.enter_context(LocalMeasurer(aim))
        begun = time.perf_counter()
        if model is None and STRATEGIES[strategy].asks_model:
            model = base_model(op, measurer, seed)
        learnt = time.perf_counter()
        table = measurer.space(op)
        tuner = Tuner(op, measurer.target, space=table, model=model, strategy=strategy, seed=seed)
        tuner.seconds["model"] += learnt - begun
        opened = Session.open(
            op,
            measurer,
            log,
            resume=resume,
            seed=seed,
            strategy=tuner.strategy_name,
            model="" if model is None else model.digest,
            sketches=tuner.sketches,
        )
        session = stack.enter_context(opened)
        observers = (*callbacks, *((progress,) if progress else ()))
        run = Run(op, tuner, measurer, session, budget, observers, started)
        stopped = ""
        try:
            run.search()
        except StopTuning as stop:
            stopped = str(stop) or "a callback stopped it"
        except WorkerError as error:  # nothing more can be measured; what was measured is not lost
            if not run.records:
                raise
            stopped = error.message
        except KeyboardInterrupt:
            raise TuningInterrupted(run.result(stopped="interrupted")) from None
        return run.result(stopped)


def _resolve(
    op: Op | str,
    shape: Shape | None,
    dtype: Any,
    layout: str | None,
    epilogue: Sequence[str] | None,
    scales: str | None,
) -> Op:
    if isinstance(op, Op):
        given = {"shape": shape, "dtype": dtype, "layout": layout, "epilogue": epilogue, "scales": scales}
        if extra := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{extra[0]} given beside an Op", "the op has its own; leave it out")
        return op
    if shape is None:
        raise UsageError(f"op {op!r} without a shape", "give shape=(M, N, K)")
    return build_named(op, shape, dtype=dtype or "bf16", layout=layout, epilogue=epilogue or (), scales=scales or "")


def _aim(target: Target | str | None, measurer: Measurer | None) -> Target | None:
    """The device that is meant; ``None`` where only this machine can tell.

    Raises:
        UsageError: The measurer answers for another one.
    """
    aim = None if target is None else parse_target(target)
    if measurer is None:
        return aim
    if aim is not None and aim.name != measurer.target.name:
        raise UsageError(f"target {aim.name} with a measurer of {measurer.target.name}", "leave target out")
    return measurer.target


def _unmeasured(op: Op, target: Target, model: CostModel | None, seed: int) -> TuningResult:
    """Budget 0: the model's own pick, which needs no device."""
    tuner = Tuner(op, target, model=model or shipped_model(), seed=seed)
    pick = tuner.best_guess()
    seconds = {"total": sum(tuner.seconds.values()), **tuner.seconds, "compile": 0.0, "measure": 0.0}
    return TuningResult(
        op, target.name, "predicted", "tuned", pick, seconds=seconds, reason="the model's pick, not measured"
    )
