"""Training a cost model on logs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autosched.errors import InvalidInputError
from autosched.features import FEATURES, SCHEMA
from autosched.log import LogContents, TuningLog, aligned
from autosched.models import CostModel, Dataset, ValidityModel, create
from autosched.models import load as load_model
from autosched.models.dataset import Outcomes, last_lines
from autosched.record import Record

Logs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | LogContents


@dataclass(frozen=True)
class Training:
    """A trained model and what it was trained on.

    Attributes:
        model: The model.
        workloads: Iteration spaces that it has seen.
        records: Trials that it learnt from; several of one schedule are one row.
        rows: Rows that it learnt from.
        failed: Trials left out because they failed.
        skipped: Trials left out because this version does not know their op, device or schedule.
        damaged: Lines and files of the logs that could not be read.
        seconds: Reading, featurising and fitting.
        path: Where it was saved; empty if it was not.
    """

    model: CostModel
    workloads: int
    records: int
    rows: int
    failed: int
    skipped: int
    damaged: int
    seconds: float
    path: str = ""

    def saved(self, path: str | os.PathLike[str]) -> Training:
        """Writes the model to ``path``, whole or not at all."""
        self.model.save(Path(path))
        return replace(self, path=str(path))

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``autosched train``."""
        return {
            "format": 1,
            "model": self.path,
            "recipe": self.model.recipe,
            "workloads": self.workloads,
            "records": self.records,
            "rows": self.rows,
            "failed": self.failed,
            "skipped": self.skipped,
            "damaged": self.damaged,
            "features": len(FEATURES),
            "schema": SCHEMA,
            "digest": self.model.digest,
            "seconds": self.seconds,
        }


def train(logs: Logs, *, recipe: str = "xgboost", seed: int = 0) -> CostModel:
    """Trains a cost model on every successful trial of logs, and its validity model on the failures as well.

    Args:
        logs: Files or folders, or what ``TuningLog.read`` gave.
        recipe: Name of the model in ``RECIPES``.
        seed: Of its row and column samples.

    Raises:
        LogNotFoundError: A path is not there, or a folder holds no log.
        LogError: A file that was named is no log.
        InvalidInputError: No recipe has that name, or no trial can be learnt from.
    """
    return run_training(logs, recipe=recipe, seed=seed).model


def run_training(logs: Logs, *, recipe: str = "xgboost", seed: int = 0) -> Training:
    """``train``, with what the model was trained on."""
    begin = time.perf_counter()
    check_seed(seed)
    model = create(recipe, seed)
    contents = read_logs(logs)
    data = make_dataset(contents.records)
    model.fit(data)
    outcomes = Outcomes.from_records(contents.records)
    model.validity = ValidityModel(seed)
    model.validity.fit(outcomes.x, outcomes.ok)
    return Training(
        model=model,
        workloads=len(set(data.spaces)),
        records=len(last_lines(contents)) - data.failed - data.skipped,
        rows=len(data),
        failed=data.failed,
        skipped=data.skipped,
        damaged=len(contents.damaged),
        seconds=time.perf_counter() - begin,
    )


def check_seed(seed: int) -> None:
    """Refuse a negative seed.

    Raises:
        InvalidInputError: It is below 0.
    """
    if seed < 0:
        raise InvalidInputError(f"seed {seed}", "give 0 or more")


def read_logs(logs: Logs) -> LogContents:
    """What the logs hold, sessions of one workload brought to one level.

    Raises:
        LogNotFoundError: A path is not there, or a folder holds no log.
        LogError: A file that was named is no log.
    """
    return aligned(logs if isinstance(logs, LogContents) else TuningLog.read(logs))


def make_dataset(records: Iterable[Record]) -> Dataset:
    """The rows of ``records``; times of a schedule that was timed again are pooled into the stratum it had before.

    Raises:
        InvalidInputError: No record makes a row.
    """
    ordered = sorted(records, key=lambda r: r.stratum == "retimed")
    data = Dataset.from_records(ordered)
    if not len(data):
        reasons = [f"{n} x {reason}" for reason, n in sorted(data.reasons.items(), key=lambda item: -item[1])[:3]]
        found = ": ".join([f"{data.failed} failed, {data.skipped} this version cannot rebuild", *reasons[:1]])
        raise InvalidInputError(
            f"none of {len(ordered)} trials can be learnt from ({found})", "give logs with successful trials"
        )
    return data


__all__ = ["Logs", "Training", "load_model", "make_dataset", "read_logs", "run_training", "train"]
