"""Ask and tell: what is proposed, from where, and that nothing is proposed twice."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.record import Measurement, Status
from autosched.search import GeneratedSpace
from autosched.sketches.builders import conv2d, conv2d_input_grad
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.schedule import ScheduleBatch
from autosched.tuner import Proposal, Tuner
from tests.tuning import OP, TARGET


def rounds(tuner: Tuner, sizes: list[int], failures: dict[Status, float] | None = None) -> list[list[Proposal]]:
    measurer = SyntheticMeasurer(TARGET, failures=failures)
    asked = []
    for n in sizes:
        proposals = tuner.ask(n)
        schedules = [p.schedule for p in proposals]
        tuner.tell(schedules, measurer.measure(OP, schedules))
        asked.append(proposals)
    return asked


def test_the_first_trial_is_the_default_and_a_share_explores() -> None:
    first, second, third = rounds(Tuner(OP, TARGET), [8, 16, 1])
    assert first[0].schedule == default_schedule(OP, TARGET, derive(OP, TARGET))
    assert [p.origin for p in first] == ["default", *["model"] * 7]
    assert [p.origin for p in second] == [*["model"] * 14, *["explore"] * 2]
    assert [p.origin for p in third] == ["model"]
    assert [{p.round for p in r} for r in (first, second, third)] == [{0}, {1}, {2}]


def test_structures_that_were_not_tried_are_probed_before_random_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every structure within reach is tried once, the most promising first; none while all were tried."""
    monkeypatch.setattr("autosched.tuner.PROBE_REACH", np.inf)
    tuner = Tuner(OP, TARGET)
    kinds = {s.name.split(".")[0] + s.name.split(".")[-1].split("-")[0] for s in tuner.sketches}
    asked = rounds(tuner, [2, 12, 12, 12, 12])
    before: set[str] = set()
    for r in asked:
        now = [kind(p) for p in r if p.origin == "model" or p.origin == "default"]
        probed = [kind(p) for p in r if p.origin == "explore"]
        fresh = kinds - before - set(now)
        assert set(probed) >= fresh or set(probed) <= fresh  # untried ones first, as many as there is room for
        before |= set(now) | set(probed)
    assert before == kinds


def test_an_op_written_otherwise_is_another_structure() -> None:
    for op, marks in (
        (conv2d(2, 3, 32, 32, 64, 3, 3, 1, 1), {"window", ""}),
        (conv2d_input_grad(2, 64, 16, 16, 64, 3, 3, 2, 1), {"phase", ""}),
        (conv2d(2, 16, 16, 16, 16, 3, 3, 1, 1, groups=16), {"run", "channel", ""}),
    ):
        tuner = Tuner(op, TARGET)
        found: dict[str, set[str]] = {}
        for sketch, of in zip(tuner.sketches, tuner._kinds, strict=True):
            mark = next((m for m in ("window", "phase", "run", "channel") if m in sketch.name), "")
            found.setdefault(mark, set()).add(of)
        assert set(found) == marks
        assert sum(map(len, found.values())) == len(set(tuner._kinds))  # none is shared


def kind(proposal: Proposal) -> str:
    """Work and finish of a proposal's sketch."""
    parts = proposal.schedule.sketch.name.split(".")
    return parts[0] + parts[-1].split("-")[0]


def test_structures_out_of_reach_are_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosched.tuner.PROBE_REACH", -np.inf)
    monkeypatch.setattr(Tuner, "_explore", lambda self, n, rng: (self.space.sample(rng, 0), np.zeros(0)))
    asked = rounds(Tuner(OP, TARGET), [4, 16])
    assert {p.origin for p in asked[1]} == {"model"}


def test_random_search_asks_no_model() -> None:
    first, second = rounds(Tuner(OP, TARGET, strategy="random"), [8, 8])
    assert [p.origin for p in first] == ["default", *["uniform"] * 7]
    assert {p.origin for p in second} == {"uniform"}
    assert {p.predicted for p in [*first[1:], *second]} == {None}


@pytest.mark.parametrize("strategy", ["random", "annealing"])
def test_proposals_are_distinct_and_valid(strategy: str) -> None:
    tuner = Tuner(OP, TARGET, strategy=strategy)
    schedules = [p.schedule for r in rounds(tuner, [5, 8, 11], {Status.COMPILE_ERROR: 0.3}) for p in r]
    assert len(schedules) == len(set(schedules)) == 24
    assert [explain_invalid(OP, TARGET, s) for s in schedules] == [None] * 24


def test_same_seed_and_measurements_same_proposals() -> None:
    once = rounds(Tuner(OP, TARGET, seed=0), [8, 8, 8])
    assert rounds(Tuner(OP, TARGET, seed=0), [8, 8, 8]) == once
    assert rounds(Tuner(OP, TARGET, seed=1), [8, 8])[1] != once[1]


def test_what_was_told_is_not_asked_for() -> None:
    space = GeneratedSpace(OP, TARGET)
    known = space.sample(np.random.default_rng(0), 20)
    tuner = Tuner(OP, TARGET, space=known, strategy="random")
    told = known[0]
    tuner.tell([told], SyntheticMeasurer(TARGET).measure(OP, [told]))
    asked = [p.schedule for p in tuner.ask(100)]
    assert told not in asked
    assert set(asked) == set(known.schedules()) - {told}
    assert tuner.ask(8) == []


def test_a_table_without_the_default_does_not_get_it() -> None:
    sketches = derive(OP, TARGET)
    default = default_schedule(OP, TARGET, sketches)
    table = GeneratedSpace(OP, TARGET).sample(np.random.default_rng(0), 20)
    rows = [s for s in table.schedules() if s != default]
    without = Tuner(OP, TARGET, space=ScheduleBatch.of(sketches, rows)).ask(4)
    assert [p.origin for p in without] == ["model"] * 4
    within = Tuner(OP, TARGET, space=ScheduleBatch.of(sketches, [*rows, default])).ask(4)
    assert (within[0].schedule, within[0].origin) == (default, "default")


def test_learning_moves_the_scores_towards_what_was_measured() -> None:
    tuner = Tuner(OP, TARGET)
    proposals = tuner.ask(16)
    batch = ScheduleBatch.of(tuner.sketches, [p.schedule for p in proposals])
    before = tuner.score(batch)
    tuner.tell(batch.schedules(), [Measurement(status=Status.OK, samples_us=(1e4 * (i + 1),)) for i in range(16)])
    after = tuner.score(batch)
    assert after.max() < before.min()
    assert after[:8].mean() > after[8:].mean()


def test_failures_alone_leave_the_scores_as_they_are() -> None:
    tuner = Tuner(OP, TARGET)
    schedules = [p.schedule for p in tuner.ask(8)]
    batch = ScheduleBatch.of(tuner.sketches, schedules)
    before = tuner.score(batch)
    tuner.tell(schedules, [Measurement(status=Status.COMPILE_ERROR, error="no")] * 8)
    np.testing.assert_array_equal(tuner.score(batch), before)
    assert len(tuner.ask(8)) == 8


def test_the_search_leaves_a_slope_on_which_everything_fails() -> None:
    """What scores highest does not run; the search must look elsewhere, not only put it behind the rest."""
    tuner, measurer = Tuner(OP, TARGET), SyntheticMeasurer(TARGET)
    sound = tuner.score(tuner.space.sample(np.random.default_rng(0), 2000))
    limit = float(np.quantile(sound, 0.9))
    failed = []
    for _ in range(8):
        schedules = [p.schedule for p in tuner.ask(8)]
        scores = Tuner(OP, TARGET).score(ScheduleBatch.of(tuner.sketches, schedules))
        told = [
            Measurement(status=Status.OUT_OF_RESOURCES, error="no") if score > limit else measured
            for score, measured in zip(scores, measurer.measure(OP, schedules), strict=True)
        ]
        tuner.tell(schedules, told)
        failed.append(sum(not m.ok for m in told))
    assert failed[1] >= 6
    assert sum(failed[4:]) <= 8  # of 32; put behind the rest only, they were 31


def test_promise_is_the_score_until_something_failed() -> None:
    tuner = Tuner(OP, TARGET)
    batch = ScheduleBatch.of(tuner.sketches, [p.schedule for p in tuner.ask(16)])
    np.testing.assert_array_equal(tuner.promise(batch), tuner.score(batch))
    wide = batch.column("block_n") >= 128
    assert 0 < wide.sum() < 16
    failed = Measurement(status=Status.OUT_OF_RESOURCES, error="no")
    ran = Measurement(status=Status.OK, samples_us=(100.0,))
    tuner.tell(batch.schedules(), [failed if w else ran for w in wide])
    doubt = tuner.score(batch) - tuner.promise(batch)
    assert (doubt >= 0).all()
    assert doubt[wide].min() > np.log(2) > doubt[~wide].max()


def test_bad_input_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown strategy 'luck' .one of annealing, evolutionary, random"):
        Tuner(OP, TARGET, strategy="luck")
    with pytest.raises(InvalidInputError, match="-1"):
        Tuner(OP, TARGET).ask(-1)
    assert Tuner(OP, TARGET).ask(0) == []
