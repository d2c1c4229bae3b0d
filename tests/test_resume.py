"""A run on a recorded table that is killed at random instants: resumed, it is the run uninterrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.log import TuningLog
from autosched.measure.replay import ReplayMeasurer
from autosched.models import RooflineModel
from autosched.record import Measurement
from autosched.recorded import recorded_measurer
from autosched.result import TuningResult
from autosched.sketches.builders import gemm
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.tune import tune_op

OP = gemm(1024, 1024, 1024)
TRIALS = 48
INSTANTS = 20

#: Tunes as the test does, and ends its own process, without a chance to tidy up, at a trial.
KILLED = """
import os, signal, sys
from tests.test_resume import tune

def kill(now):
    if now.trial == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

tune(sys.argv[1], progress=kill)
"""


class Counting(ReplayMeasurer):
    """Replays the shipped tables and keeps what it was asked."""

    def __init__(self) -> None:
        source = recorded_measurer("H200")
        key = OP.key()
        super().__init__([r for r in source.records if r.key == key], source.target)
        self.asked: list[Schedule] = []

    def measure(self, op: Op, schedules: Sequence[Schedule]) -> list[Measurement]:
        self.asked += schedules
        return super().measure(op, schedules)


def tune(log: str | Path, **arguments: Any) -> TuningResult:
    arguments = {"measurer": Counting(), "model": RooflineModel(), **arguments}
    return tune_op(OP, budget=TRIALS, log=log, seed=5, **arguments)


def trials(log: Path) -> list[dict[str, Any]]:
    records = sorted(TuningLog.read(log), key=lambda r: r.trial)
    return [{"trial": r.trial, "round": r.round, "origin": r.origin, **r.schedule} for r in records]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuningResult]:
    log = tmp_path_factory.mktemp("whole") / "log.jsonl"
    return log, tune(log)


def test_killed_at_any_byte_of_its_log(whole: tuple[Path, TuningResult], tmp_path: Path) -> None:
    log, expected = whole
    data = log.read_bytes()
    header = data.index(b"\n") + 1
    for cut in np.random.default_rng(2026).integers(header, len(data), INSTANTS):
        part = tmp_path / f"{cut}.jsonl"
        part.write_bytes(data[:cut])
        held = {json.dumps(r.schedule) for r in TuningLog.read(part)}
        measurer = Counting()
        result = tune(part, measurer=measurer, resume=True)
        assert (result.schedule, result.latency_us, result.curve) == (
            expected.schedule,
            expected.latency_us,
            expected.curve,
        )
        assert len(measurer.asked) == TRIALS - len(held)
        assert not held & {json.dumps(s.to_json()) for s in measurer.asked}
        assert trials(part) == trials(log)


@pytest.mark.parametrize("trial", [1, 17, 31])
def test_killed_by_a_signal(whole: tuple[Path, TuningResult], tmp_path: Path, trial: int) -> None:
    log, expected = whole
    part = tmp_path / "part.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(part), str(trial)], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(TuningLog.read(part)) == trial
    measurer = Counting()
    result = tune(part, measurer=measurer, resume=True)
    assert (result.schedule, result.curve) == (expected.schedule, expected.curve)
    assert len(measurer.asked) == TRIALS - trial
    assert trials(part) == trials(log)
