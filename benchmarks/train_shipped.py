"""Trains the model that ships with the package on all recorded tables.

python -m benchmarks.train_shipped --out models/pretrained/xgboost.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from autosched.offline.training import run_training
from autosched.recorded import recorded_devices


def main() -> None:
    """``autosched train`` on every table of every device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    trained = run_training(list(recorded_devices().values()), seed=arguments.seed)
    print(json.dumps(trained.saved(arguments.out).to_dict()))


if __name__ == "__main__":
    main()
