"""autosched: a learned-cost-model auto-scheduler for Triton kernels.

Public names resolve on first use, so that importing the package loads neither torch nor triton nor xgboost.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosched.benching.result import Bench as Bench
    from autosched.benching.run import bench as bench
    from autosched.budget import Budget as Budget
    from autosched.errors import StopTuning as StopTuning
    from autosched.errors import TuningInterrupted as TuningInterrupted
    from autosched.log import TuningLog as TuningLog
    from autosched.measure.local import LocalMeasurer as LocalMeasurer
    from autosched.measure.replay import ReplayMeasurer as ReplayMeasurer
    from autosched.measure.synthetic import SyntheticMeasurer as SyntheticMeasurer
    from autosched.offline.evaluation import Evaluation as Evaluation
    from autosched.offline.evaluation import evaluate as evaluate
    from autosched.offline.simulation import simulate as simulate
    from autosched.offline.simulation_result import Simulation as Simulation
    from autosched.offline.training import load_model as load_model
    from autosched.offline.training import train as train
    from autosched.recorded import recorded_devices as recorded_devices
    from autosched.recorded import recorded_measurer as recorded_measurer
    from autosched.result import TuningResult as TuningResult
    from autosched.sketches.builders import bmm as bmm
    from autosched.sketches.builders import contraction as contraction
    from autosched.sketches.builders import conv1d as conv1d
    from autosched.sketches.builders import conv2d as conv2d
    from autosched.sketches.builders import conv2d_input_grad as conv2d_input_grad
    from autosched.sketches.builders import conv2d_weight_grad as conv2d_weight_grad
    from autosched.sketches.builders import conv3d as conv3d
    from autosched.sketches.builders import conv_transpose2d as conv_transpose2d
    from autosched.sketches.builders import gemm as gemm
    from autosched.sketches.builders import grouped_gemm as grouped_gemm
    from autosched.sketches.rules import derive as derive
    from autosched.sketches.target import PRESETS as PRESETS
    from autosched.sketches.target import Target as Target
    from autosched.tune import tune_op as tune_op
    from autosched.tuner import Tuner as Tuner

_PUBLIC = {
    "Bench": "autosched.benching.result",
    "Budget": "autosched.budget",
    "Evaluation": "autosched.offline.evaluation",
    "LocalMeasurer": "autosched.measure.local",
    "PRESETS": "autosched.sketches.target",
    "ReplayMeasurer": "autosched.measure.replay",
    "Simulation": "autosched.offline.simulation_result",
    "StopTuning": "autosched.errors",
    "SyntheticMeasurer": "autosched.measure.synthetic",
    "Target": "autosched.sketches.target",
    "Tuner": "autosched.tuner",
    "TuningInterrupted": "autosched.errors",
    "TuningLog": "autosched.log",
    "TuningResult": "autosched.result",
    "bench": "autosched.benching.run",
    "bmm": "autosched.sketches.builders",
    "contraction": "autosched.sketches.builders",
    "conv1d": "autosched.sketches.builders",
    "conv2d": "autosched.sketches.builders",
    "conv2d_input_grad": "autosched.sketches.builders",
    "conv2d_weight_grad": "autosched.sketches.builders",
    "conv3d": "autosched.sketches.builders",
    "conv_transpose2d": "autosched.sketches.builders",
    "derive": "autosched.sketches.rules",
    "evaluate": "autosched.offline.evaluation",
    "gemm": "autosched.sketches.builders",
    "grouped_gemm": "autosched.sketches.builders",
    "load_model": "autosched.offline.training",
    "recorded_devices": "autosched.recorded",
    "recorded_measurer": "autosched.recorded",
    "train": "autosched.offline.training",
    "simulate": "autosched.offline.simulation",
    "tune_op": "autosched.tune",
}

__version__ = "0.1.0"
__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - the names are the table's


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
