"""Trains the model that ships with the package on all recorded tables.

python -m benchmarks.train_shipped --out models/pretrained/xgboost.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from autosched.models import Dataset, Outcomes, ValidityModel, create
from autosched.recorded import recorded_devices, recorded_log


def main() -> None:
    """Fits on every row that is recorded on any device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    records = [r for device in recorded_devices() for r in recorded_log(device).records]
    data, outcomes = Dataset.from_records(records), Outcomes.from_records(records)
    model = create("xgboost", arguments.seed)
    model.fit(data)
    model.validity = ValidityModel(arguments.seed)
    model.validity.fit(outcomes.x, outcomes.ok)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    model.save(arguments.out)
    print(
        json.dumps(
            {
                "rows": len(data),
                "spaces": sorted(set(data.spaces)),
                "skipped": data.skipped,
                "failures": int((~outcomes.ok).sum()),
            }
        )
    )


if __name__ == "__main__":
    main()
