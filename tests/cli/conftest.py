"""A command line whose recorded device is a small table of synthetic measurements, on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from autosched.cli import app, doctor, measurers
from autosched.cli.devices import Found
from autosched.errors import NotRecordedError
from autosched.log import LogContents, Vendor
from autosched.measure.base import Measurer
from autosched.measure.replay import ReplayMeasurer
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.record import Record, Status
from autosched.search import GeneratedSpace
from autosched.sketches.builders import gemm
from autosched.sketches.target import PRESETS

NO_GPU = Found(problem="no NVIDIA driver is installed")
ROWS = 80


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """All of stdout as one JSON object."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


Cli = Callable[..., Ran]


def table() -> LogContents:
    """Rows of one gemm, some of them failures, and the vendor library's time."""
    op, target = gemm(512, 512, 512), PRESETS["H200"]
    batch = GeneratedSpace(op, target).sample(np.random.default_rng(0), ROWS)
    schedules = [batch[i] for i in range(len(batch))]
    synthetic = SyntheticMeasurer(target, failures={Status.WRONG_RESULT: 0.1})
    records = [
        Record(key=op.key(), op=op.spec, device="H200", schedule=s.to_json(), measurement=m, session="s", trial=i)
        for i, (s, m) in enumerate(zip(schedules, synthetic.measure(op, schedules), strict=True))
    ]
    baseline = synthetic.baseline(op)
    vendor = Vendor(key=op.key(), device="H200", name="cublas", latency_us=baseline.latency_us, session="s")
    return LogContents(records=records, vendors=[vendor])


@pytest.fixture(scope="session")
def recorded_table() -> LogContents:
    return table()


@pytest.fixture(autouse=True)
def recorded_h200(recorded_table: LogContents, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, and one recorded device."""

    def recorded(device: str | None) -> Measurer:
        if device not in (None, "H200"):
            raise NotRecordedError(f"no table is recorded on {device!r}", "recorded: H200")
        return ReplayMeasurer(recorded_table)

    monkeypatch.setattr(measurers, "recorded", recorded)
    monkeypatch.setattr(measurers, "find_gpus", lambda: NO_GPU)
    monkeypatch.setattr(doctor, "find_gpus", lambda: NO_GPU)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a synthetic measurer with given failures in the recorded one's place."""

    def put(**failures: float) -> None:
        shares = {Status(name): share for name, share in failures.items()}
        monkeypatch.setattr(measurers, "recorded", lambda device: SyntheticMeasurer(PRESETS["H200"], failures=shares))

    return put


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = app.run(list(arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
