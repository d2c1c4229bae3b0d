"""The tables that ship with the package, and the models that may guide a run on them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

from autosched.errors import NotRecordedError
from autosched.log import LogContents, TuningLog, aligned
from autosched.measure.base import Measurer
from autosched.measure.replay import ReplayMeasurer
from autosched.models import CostModel, Dataset, create, load
from autosched.record import Record
from autosched.sketches.builders import build
from autosched.sketches.op import Op

SHIPPED_MODEL = "pretrained/xgboost.json"
T = TypeVar("T")


def recorded_devices() -> dict[str, Path]:
    """Folder of the shipped tables of each device, by name."""
    return _devices("recorded")


def teaching_folders() -> dict[str, tuple[Path, ...]]:
    """Folders of all that ships to train models on, by device: the tables, and the logs of our own runs."""
    runs = _devices("runs")
    return {name: (path, *([runs[name]] if name in runs else [])) for name, path in recorded_devices().items()}


def _devices(kind: str) -> dict[str, Path]:
    root = Path(str(resources.files("autosched.tuning_logs") / kind))
    return {p.name: p for p in sorted(root.iterdir()) if p.is_dir()} if root.is_dir() else {}


@lru_cache(maxsize=4)
def recorded_log(device: str) -> LogContents:
    """The tables of a device, sessions of one workload brought to one level.

    Raises:
        NotRecordedError: Nothing is recorded there.
    """
    return aligned(TuningLog.read(_named(device, recorded_devices())))


@lru_cache(maxsize=4)
def teaching_log(device: str) -> LogContents:
    """The tables of a device and our own runs there, sessions of one workload brought to one level.

    Raises:
        NotRecordedError: Nothing is recorded there.
    """
    return aligned(TuningLog.read(_named(device, teaching_folders())))


def _named(device: str, folders: Mapping[str, T]) -> T:
    """What belongs to a device, whose name's case does not matter."""
    found = {name.lower(): folder for name, folder in folders.items()}
    if device.lower() not in found:
        raise NotRecordedError(f"no table is recorded on {device!r}", f"recorded: {', '.join(folders)}")
    return found[device.lower()]


def recorded_measurer(device: str | None = None) -> ReplayMeasurer:
    """A measurer that answers from the shipped tables; of the first device if none is named.

    Raises:
        NotRecordedError: Nothing is recorded there.
    """
    names = list(recorded_devices())
    if not names:
        raise NotRecordedError("no recorded device ships with this installation", "give a log to ReplayMeasurer")
    return ReplayMeasurer(recorded_log(device or names[0]))


def shipped_model() -> CostModel | None:
    """The pretrained model; ``None`` where none ships."""
    path = Path(str(resources.files("autosched.models") / SHIPPED_MODEL))
    return load(path) if path.exists() else None


def held_out_model(records: list[Record], space: str, seed: int = 0) -> CostModel | None:
    """A model trained on every recorded iteration space but one; ``None`` if there is no other.

    Args:
        records: Rows of any number of workloads.
        space: ``Op.iteration_space()`` that the model must not have seen.
        seed: Of the training.
    """
    spaces = {key: build(spec).iteration_space() for key, spec in {r.key: r.op for r in records}.items()}
    others = [r for r in records if spaces[r.key] != space]
    data = Dataset.from_records(others)
    if not len(data):
        return None
    model = create("xgboost", seed)
    model.fit(data)
    return model


def held_out_on(device: str, op: Op, seed: int = 0) -> CostModel | None:
    """A model trained on the tables of a device and our own runs there, without the op's iteration space.

    Raises:
        NotRecordedError: Nothing is recorded there.
    """
    return held_out_model(teaching_log(device).records, op.iteration_space(), seed)


def base_model(op: Op, measurer: Measurer, seed: int) -> CostModel | None:
    """What guides a run to which no model was given: on recorded rows never one that has seen the workload."""
    if isinstance(measurer, ReplayMeasurer):
        return held_out_model(measurer.records, op.iteration_space(), seed)
    return shipped_model() if measurer.source == "measured" else None
