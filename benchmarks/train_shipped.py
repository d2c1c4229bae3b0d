"""Trains the model that ships with the package on all recorded tables and on our own runs.

python -m benchmarks.train_shipped --out models/pretrained/xgboost.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from autosched.offline.training import run_training
from autosched.recorded import teaching_folders


def main() -> None:
    """``autosched train`` on every table and run of every device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folders = [path for paths in teaching_folders().values() for path in paths]
    trained = run_training(folders, seed=arguments.seed)
    print(json.dumps(trained.saved(arguments.out).to_dict()))


if __name__ == "__main__":
    main()
