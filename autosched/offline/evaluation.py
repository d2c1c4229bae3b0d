"""Judging a recipe, or a trained model, on recorded workloads that it has not seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError, UsageError
from autosched.features import roofline_us
from autosched.log import LogContents
from autosched.models import CostModel, Dataset, create
from autosched.models.metrics import TOP
from autosched.offline.baselines import baseline_scores
from autosched.offline.figures import FIGURES, Difference, Figures, Judge, known
from autosched.offline.splits import SPLITS, Part, Workload, describe, make_parts
from autosched.offline.training import Logs, check_seed, load_model, make_dataset, read_logs
from autosched.record import TEACHING, Record

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """Measured and predicted latency of every judged row.

    Attributes:
        workloads: Name of each row's workload.
        measured_us: Median latency, in microseconds.
        predicted_us: What the model expected, in microseconds.
    """

    workloads: list[str]
    measured_us: Vector
    predicted_us: Vector


@dataclass(frozen=True)
class Pool:
    """Rows that shortlists are taken from, and what the model and the baselines reach on them.

    Attributes:
        rows: Number of rows.
        figures: The model's.
        baselines: Theirs, by name.
        advantage: The model's figure less the baseline's, by baseline and figure.
    """

    rows: int
    figures: Figures
    baselines: Mapping[str, Figures]
    advantage: Mapping[str, Mapping[str, Difference]]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the model's figures and their ``intervals``, ``baselines``, ``advantage``."""
        return {
            "rows": self.rows,
            **self.figures.to_dict(),
            "baselines": {name: figures.to_dict() for name, figures in self.baselines.items()},
            "advantage": {
                name: {figure: difference.to_dict() for figure, difference in by_figure.items()}
                for name, by_figure in self.advantage.items()
            },
        }


@dataclass(frozen=True)
class Evaluation:
    """How good a cost model is, and what baselines reach on the same rows.

    Attributes:
        split: How rows were parted, one of ``SPLITS``.
        recipe: Name of the model in ``RECIPES``.
        model: The file that was scored; empty where a recipe was.
        seed: Of training, halves and intervals.
        parts: Models trained; 0 where a trained one was scored.
        spaces: Iteration spaces judged.
        seen: Iteration spaces left out because the model was trained on them.
        unjudged: Workloads (key and device) left out because the split leaves nothing to learn from for them.
        unstated: Records left out because they state no stratum.
        skipped: Records left out because this version cannot rebuild them.
        all: Shortlists from all rows, those that a guided search proposed among them.
        uniform: Shortlists from the rows of stratum ``uniform`` alone, what an unguided search would meet; ``None``
            where there are none.
        workloads: Those judged.
        held_out: Name of the part that each workload was judged in.
        predictions: Row by row.
    """

    split: str
    recipe: str
    model: str
    seed: int
    parts: int
    spaces: int
    seen: int
    unjudged: int
    unstated: int
    skipped: int
    all: Pool
    uniform: Pool | None
    workloads: Mapping[str, Workload]
    held_out: Mapping[str, str]
    predictions: Predictions = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``autosched evaluate``; ``workloads`` counts iteration spaces."""
        return {
            "format": 1,
            "split": self.split,
            "recipe": self.recipe,
            "model": self.model or None,
            "seed": self.seed,
            "parts": self.parts,
            "workloads": self.spaces,
            "seen": self.seen,
            "unjudged": self.unjudged,
            "unstated": self.unstated,
            "skipped": self.skipped,
            **self.all.to_dict(),
            "uniform": None if self.uniform is None else self.uniform.to_dict(),
            "by_workload": [self._row(w) for w in self.workloads.values()],
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the top-k curves and predicted against measured latency into a ``.png``, ``.svg`` or ``.pdf`` file.

        Raises:
            InvalidInputError: The name has another ending, or its folder is not there.
            UsageError: matplotlib is not installed.
        """
        from autosched.offline.plots import draw

        draw(self, Path(path))

    def _row(self, workload: Workload) -> dict[str, Any]:
        name = workload.name
        return {
            "key": workload.op.key(),
            "device": workload.device,
            "space": workload.op.iteration_space(),
            "family": workload.family,
            "dtype": workload.dtype,
            "part": self.held_out[name],
            **(_by_figure(self.all, name) or {}),
            "uniform": _by_figure(self.uniform, name) if self.uniform is not None else None,
        }


def _by_figure(pool: Pool, workload: str) -> dict[str, Any] | None:
    """One workload's figures; ``None`` where the pool has no row of it."""
    if workload not in pool.figures.values["top1"]:
        return None
    return {
        **{figure: known(pool.figures.values[figure][workload]) for figure in FIGURES},
        "baselines": {
            baseline: {f"top{k}": known(figures.values[f"top{k}"][workload]) for k in TOP}
            for baseline, figures in pool.baselines.items()
        },
    }


def evaluate(
    logs: Logs,
    *,
    recipe: str | None = None,
    model: CostModel | str | os.PathLike[str] | None = None,
    split: str = "by-workload",
    folds: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Judges a recipe on workloads that it was not trained on, or a trained model on those that it has not seen.

    Only rows that state their stratum count. A recipe is trained once a part of the split, on the other parts' rows;
    see ``splits.make_parts`` for the splits and ``splits.family_of`` for the families. A trained model is judged on the
    iteration spaces that are not among those it was trained on; its ``nearest`` baseline may look up every other
    iteration space of the logs.

    Args:
        logs: Files or folders, or what ``TuningLog.read`` gave.
        recipe: Name of the model in ``RECIPES``; ``xgboost`` if neither it nor ``model`` is given.
        model: A trained model or its file.
        split: One of ``SPLITS``; a trained model takes ``by-workload`` only.
        folds: Parts of the iteration spaces.
        seed: Of training, of random halves and of the intervals.
        progress: Called with parts done and parts in all.

    Raises:
        LogNotFoundError: A path is not there, or a folder holds no log.
        LogError: A file that was named is no log.
        ModelMismatchError: The model's file is damaged or of another schema.
        InvalidInputError: No row states its stratum, the data cannot make the split, or the model has seen all of it.
        UsageError: Both a recipe and a model are given, or a model and another split.
    """
    tell = progress or (lambda done, total: None)
    trained, path = _check(recipe, model, split, folds, seed)
    contents = read_logs(logs)
    stated = _stated(contents)
    data = make_dataset(stated)
    workloads = describe(data, stated)
    if trained is not None:
        name, parts = trained.recipe, _unseen(data, trained)
        scores = _trained_scores(data, parts, trained)
    else:
        name, parts = recipe or "xgboost", make_parts(data, workloads, split, folds, seed)
        scores = _held_out_scores(data, parts, name, seed, tell)
    judged = np.flatnonzero(~np.isnan(scores))
    rows = data.take(judged)
    orders = {"model": scores, **baseline_scores(data, workloads, parts)}
    pools = {
        stratum: _pool(data, orders, judged[[stratum in ("", data.strata[i]) for i in judged]], seed)
        for stratum in ("", "uniform")
    }
    everything = pools[""]
    assert everything is not None
    spaces = len(set(rows.spaces))
    return Evaluation(
        split=split,
        recipe=name,
        model=path,
        seed=seed,
        parts=0 if trained is not None else len(parts),
        spaces=spaces,
        seen=len(set(data.spaces)) - spaces if trained is not None else 0,
        unjudged=0 if trained is not None else len(data.groups) - len(rows.groups),
        unstated=len(contents) - len(stated),
        skipped=data.skipped,
        all=everything,
        uniform=pools["uniform"],
        workloads={name: workloads[name] for name in rows.groups},
        held_out={data.workloads[i]: part.name for part in parts for i in part.test},
        predictions=_predictions(rows, workloads, scores[judged]),
    )


def _pool(data: Dataset, orders: Mapping[str, Vector], rows: NDArray[np.intp], seed: int) -> Pool | None:
    """What each of ``orders`` (scores of all rows of ``data``) reaches on ``rows``; ``None`` if there are none."""
    if not len(rows):
        return None
    judge = Judge(data.take(rows), seed)
    figures = judge.judge(orders["model"][rows])
    baselines = {name: judge.judge(scores[rows]) for name, scores in orders.items() if name != "model"}
    advantage = {
        name: {f"top{k}": judge.difference(figures, theirs, f"top{k}") for k in TOP}
        for name, theirs in baselines.items()
    }
    return Pool(len(rows), figures, baselines, advantage)


def _predictions(rows: Dataset, workloads: Mapping[str, Workload], scores: Vector) -> Predictions:
    roofline = np.empty(len(rows))
    for name, index in rows.groups.items():
        roofline[index] = roofline_us(workloads[name].op, workloads[name].target)
    return Predictions(rows.workloads, roofline * np.exp(-rows.y), roofline * np.exp(-scores))


def _check(
    recipe: str | None, model: CostModel | str | os.PathLike[str] | None, split: str, folds: int, seed: int
) -> tuple[CostModel | None, str]:
    """The trained model and its file, if one is given; everything that can be refused before logs are read is."""
    check_seed(seed)
    if split not in SPLITS:
        raise InvalidInputError(f"unknown split {split!r}", f"one of {', '.join(SPLITS)}")
    if folds < 2:
        raise InvalidInputError(f"{folds} folds", "give 2 or more")
    if model is None:
        create(recipe or "xgboost", seed)
        return None, ""
    if recipe is not None:
        raise UsageError(f"recipe {recipe!r} beside a trained model", "give one of them")
    if split != "by-workload":
        raise UsageError(
            f"split {split!r} with a trained model", "a split parts the training of a recipe; leave it out"
        )
    if isinstance(model, str | os.PathLike):
        return load_model(Path(model)), str(model)
    return model, ""


def _stated(contents: LogContents) -> list[Record]:
    """The records that state their stratum, but for those that only teach."""
    stated = [r for r in contents if r.stratum and r.stratum not in TEACHING]
    if not stated:
        raise InvalidInputError(
            f"none of {len(contents)} trials states its stratum", "give recorded tables, such as tuning_logs/recorded"
        )
    return stated


def _unseen(data: Dataset, model: CostModel) -> list[Part]:
    """One part for each iteration space that ``model`` was not trained on."""
    seen = set(model.spaces)
    spaces = np.array(data.spaces)
    unseen = sorted(set(data.spaces) - seen)
    if not unseen:
        raise InvalidInputError(
            f"the model was trained on all {len(set(data.spaces))} iteration spaces of these logs",
            "give logs of other workloads, or judge its recipe: --recipe " + model.recipe,
        )
    return [Part(space, np.flatnonzero(spaces != space), np.flatnonzero(spaces == space)) for space in unseen]


def _trained_scores(data: Dataset, parts: Sequence[Part], model: CostModel) -> Vector:
    """The score of each row that is in a part; ``nan`` elsewhere."""
    scores = np.full(len(data), np.nan)
    judged = np.concatenate([part.test for part in parts])
    scores[judged] = model.score(data.x[judged])
    return scores


def _held_out_scores(
    data: Dataset, parts: Sequence[Part], recipe: str, seed: int, tell: Callable[[int, int], None]
) -> Vector:
    """Each row's score by the model of its part; ``nan`` where it is in none."""
    scores = np.full(len(data), np.nan)
    for done, part in enumerate(parts):
        tell(done, len(parts))
        model = create(recipe, seed)
        model.fit(data.take(part.train))
        scores[part.test] = model.score(data.x[part.test])
    tell(len(parts), len(parts))
    return scores
