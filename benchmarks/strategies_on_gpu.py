r"""Search strategies against each other on this machine's GPU: at equal trials, and at equal seconds.

    python -m benchmarks.strategies_on_gpu --shape 4096,4096,4096 --shape 512,512,16384 --seeds 2 --seconds 12

Each strategy tunes each workload for the same number of seconds, all with the same measurer; those that ask a model get
one that has not seen the workload. Then the best schedules that the strategies found by ``--trials`` trials, and by the
end, are compared in interleaved blocks with each other and the vendor library in one go, so that their ratios do not
hang on single readings. The seconds hold whatever a strategy needs: choosing, compiling, measuring.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autosched.errors import StopTuning
from autosched.measure.local import LocalMeasurer
from autosched.models import CostModel
from autosched.progress import Progress
from autosched.recorded import held_out_on
from autosched.search import STRATEGIES
from autosched.sketches.builders import gemm
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.tune import tune_op

STRATEGY_NAMES = ("annealing", "evolutionary", "random", "tpe")
#: No run reaches so many trials: its seconds end it.
NEVER = 10_000


@dataclass
class Course:
    """What one run found, trial by trial.

    Attributes:
        strategy: What proposed.
        seed: Of the search.
        seconds: After which it stops.
        trials: Seconds since the start, latency in microseconds (``None`` for a failure) and schedule of each trial.
    """

    strategy: str
    seed: int
    seconds: float
    trials: list[tuple[float, float | None, dict[str, int | str]]] = field(default_factory=list)

    def note(self, now: Progress) -> None:
        """Keeps a trial, and ends the run when its seconds are over; an observer of ``tune_op``."""
        if now.seconds > self.seconds:
            raise StopTuning("its seconds are over")
        if now.last is not None:
            self.trials.append((now.seconds, now.last.measurement.latency_us, now.last.schedule))

    def best(self, trials: int) -> dict[str, int | str] | None:
        """The fastest schedule of the first ``trials`` trials."""
        timed = [(latency, i) for i, (_, latency, _) in enumerate(self.trials[:trials]) if latency is not None]
        return self.trials[min(timed)[1]][2] if timed else None


def course(
    op: Op, measurer: LocalMeasurer, model: CostModel | None, strategy: str, seed: int, seconds: float
) -> Course:
    """One run of so many seconds; a run that is stopped has no shoot-out, whose place the comparison takes."""
    found = Course(strategy, seed, seconds)
    guide = model if STRATEGIES[strategy].asks_model else None
    tune_op(
        op, budget=NEVER, measurer=measurer, model=guide, strategy=strategy, seed=seed, log=False, progress=found.note
    )
    return found


def compare(op: Op, measurer: LocalMeasurer, courses: Sequence[Course], trials: int) -> list[dict[str, Any]]:
    """Ratio to the vendor library of what each run found by ``trials`` trials and by its end, all interleaved."""
    sketches = derive(op, measurer.target)
    wanted = [(run, at) for run in courses for at in (trials, len(run.trials))]
    named = {json.dumps(best): best for run, at in wanted if (best := run.best(at)) is not None}
    schedules = [Schedule.from_json(best, sketches) for best in named.values()]
    found = measurer.compare(op, schedules)
    ratios = dict(zip(named, found.ratios, strict=True))
    rows = []
    for run in courses:
        early, late = (ratios.get(json.dumps(run.best(at))) for at in (trials, len(run.trials)))
        rows.append(
            {
                "key": op.key(),
                "strategy": run.strategy,
                "seed": run.seed,
                "trials": len(run.trials),
                "failures": sum(latency is None for _, latency, _ in run.trials),
                "seconds_to_trials": run.trials[trials - 1][0] if len(run.trials) >= trials else None,
                f"at_{trials}_trials": early,
                "at_equal_seconds": late,
            }
        )
    return rows


def summary(rows: Sequence[dict[str, Any]], trials: int) -> list[dict[str, Any]]:
    """Geometric means over workloads and seeds by strategy."""
    out = []
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        own = [row for row in rows if row["strategy"] == strategy]
        line: dict[str, Any] = {"strategy": strategy, "runs": len(own)}
        for name in (f"at_{trials}_trials", "at_equal_seconds"):
            ratios = [row[name] for row in own if row[name]]
            line[name] = math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None
        line["trials"] = sum(row["trials"] for row in own) / len(own)
        out.append(line)
    return out


def main() -> None:
    """One JSON line a run, then one a strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", required=True, help="M,N,K; may be given several times")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nn")
    parser.add_argument("--strategy", action="append", choices=sorted(STRATEGIES), help="all usual ones if not given")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with LocalMeasurer() as measurer:
        name = measurer.target.name  # waits for the children, so that no run pays for their start
        for text in arguments.shape:
            m, n, k = (int(x) for x in text.split(","))
            op = gemm(m, n, k, dtype=arguments.dtype, layout=arguments.layout)
            model = held_out_on(name, op)
            courses = [
                course(op, measurer, model, strategy, seed, arguments.seconds)
                for seed in range(arguments.seeds)
                for strategy in arguments.strategy or STRATEGY_NAMES
            ]
            found = compare(op, measurer, courses, arguments.trials)
            for row in found:
                print(json.dumps(row), flush=True)
            rows += found
    for line in summary(rows, arguments.trials):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
