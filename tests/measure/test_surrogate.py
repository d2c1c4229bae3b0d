"""The surrogate answers with its model's prediction, for any schedule, and rejects what a constraint rejects."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import NotRecordedError
from autosched.features import extract, roofline_us
from autosched.measure.base import Measurer
from autosched.measure.surrogate import SurrogateMeasurer
from autosched.models import RooflineModel
from autosched.record import Status
from autosched.search.space import GeneratedSpace
from autosched.sketches.builders import gemm
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS
from autosched.tune import tune_op
from tests.tuning import plain_sketches

TARGET = PRESETS["H200"]
OP = gemm(4096, 4096, 4096)
SPACE = GeneratedSpace(OP, TARGET)
BATCH = SPACE.sample(np.random.default_rng(0), 50)


def test_the_answer_is_the_models_prediction_in_the_order_asked() -> None:
    model = RooflineModel()
    with SurrogateMeasurer(model, TARGET) as measurer:
        assert isinstance(measurer, Measurer)
        measurements = measurer.measure(OP, BATCH.schedules())
        backwards = measurer.measure(OP, BATCH.schedules()[::-1])
    expected = roofline_us(OP, TARGET) / np.exp(model.score(extract(OP, TARGET, BATCH)))

    assert [m.latency_us for m in measurements] == pytest.approx(expected)
    assert backwards == measurements[::-1]
    assert measurements[0].status == Status.OK
    assert len(set(expected)) > 30


def test_what_is_invalid_fails_and_says_why() -> None:
    sketch = next(s for s in SPACE.sketches if s.name == "grid.tma-tma.direct-tma")
    huge = Schedule.of(sketch, block_m=256, block_n=256, block_k=256, stages=7)
    fine, invalid = SurrogateMeasurer(RooflineModel(), TARGET).measure(OP, [BATCH[0], huge])

    assert fine.ok
    assert invalid.status == Status.INVALID
    assert "shared memory" in invalid.error
    assert invalid.latency_us is None


def test_it_lists_no_space_and_compares_with_nothing() -> None:
    measurer = SurrogateMeasurer(RooflineModel(), TARGET)

    assert measurer.source == "synthetic"
    assert measurer.space(OP) is None
    assert measurer.baseline(OP) is None
    assert measurer.measure(OP, []) == []
    with pytest.raises(NotRecordedError, match="vendor library"):
        measurer.compare(OP, [BATCH[0]])


def test_a_run_against_it_finds_its_best() -> None:
    op, model = gemm(64, 512, 512), RooflineModel()
    space = GeneratedSpace(op, TARGET, plain_sketches(op, TARGET))  # the bound asks for no knob that seldom matters
    result = tune_op(op, budget=4, measurer=SurrogateMeasurer(model, TARGET), model=model, log=False)
    best = max(float(model.score(extract(op, TARGET, c)).max()) for c in space.enumerate(np.random.default_rng(0)))

    assert result.status == "tuned"
    assert result.latency_us == pytest.approx(roofline_us(op, TARGET) / np.exp(best), rel=0.01)
