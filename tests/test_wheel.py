"""The wheel holds the whole package, links followed, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("build")
pytest.importorskip("setuptools")

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("autosched", "sketches", "features", "models", "tuning_logs")
FILES = ("pyproject.toml", "README.md", "LICENSE")
pytestmark = pytest.mark.slow


def _expected() -> set[str]:
    """Every Python module of the tree and every data file that the package reads."""
    found = {"autosched/py.typed", "autosched/benching/suite.json"}
    for folder, folders, files in os.walk(ROOT / "autosched", followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        relative = Path(folder).relative_to(ROOT)
        found |= {(relative / file).as_posix() for file in files if file.endswith(".py")}
    logs = [f"tuning_logs/{kind}/**/*.jsonl.gz" for kind in ("recorded", "runs")]
    for pattern in ("models/**/*.json", "models/**/*.ubj", *logs):
        found |= {f"autosched/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob(pattern)}
    if (ROOT / "tuning_logs" / "README.md").exists():
        found.add("autosched/tuning_logs/README.md")
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution and the wheel built from it, made in a copy so that the tree stays clean."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    recorded = tree / "tuning_logs" / "recorded" / "planted"
    recorded.mkdir(parents=True)
    (recorded / "table.jsonl.gz").write_bytes(b"")
    (recorded / "notes.draft").write_text("not for the wheel")
    pretrained = tree / "models" / "pretrained"
    pretrained.mkdir(exist_ok=True)
    (pretrained / "planted.json").write_text("{}")
    command = [sys.executable, "-m", "build", "--no-isolation", str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (wheel,) = (tree / "dist").glob("*.whl")
    return wheel


def test_the_wheel_holds_every_module_and_data_file(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    planted = {"tuning_logs/recorded/planted/table.jsonl.gz", "models/pretrained/planted.json"}
    assert names == _expected() | {f"autosched/{name}" for name in planted}


def test_the_wheel_declares_script_licence_and_lower_bounds(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    assert "autosched = autosched.cli:main" in texts["entry_points.txt"]
    assert "Copyright 2026 The autosched authors" in texts["LICENSE"]
    metadata = texts["METADATA"]
    assert "License-Expression: Apache-2.0" in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert len(required) == 12
    assert [line for line in required if ">=" not in line or "<" in line] == []


def test_the_wheels_modules_import(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path)
    code = "import autosched.errors, autosched.record, autosched.sketches; print(autosched.sketches.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "autosched" / "sketches" / "__init__.py"
