"""The rules that hold the tree together: layers, lazy imports, one reader of the environment, no machine's paths."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "autosched"
LINKED = ("sketches", "features", "models", "tuning_logs")
HEAVY = ("torch", "triton", "xgboost", "sklearn")
MAY_LOAD_HEAVY: frozenset[str] = frozenset({"autosched.measure.rivals.triton_matmul"})
"""Modules that may import one of HEAVY when they are imported: a hand-written kernel, whose names Triton looks up."""

READS_ENVIRONMENT = "settings.py"
TEXT_SUFFIXES = {".py", ".toml", ".md", ".txt", ".sh", ".json", ".ipynb", ".cfg", ".yaml", ".yml", ""}
SKIPPED_FOLDERS = {"build", "dist", "__pycache__", "node_modules"}


def _modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package with its file, links followed."""
    for folder, folders, files in os.walk(PACKAGE, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for file in sorted(files):
            if file.endswith(".py"):
                path = Path(folder, file)
                parts = path.relative_to(ROOT).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _texts() -> Iterator[Path]:
    """Every text file of the source tree, links not followed."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name for name in folders if name not in SKIPPED_FOLDERS and (not name.startswith(".") or name == ".ci")
        ]
        paths = (Path(folder, file) for file in files)
        yield from (path for path in paths if path.suffix in TEXT_SUFFIXES and path.is_file())


def _run(*arguments: str, cwd: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(cwd), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, input=text, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package and its configuration that a test may spoil."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("autosched", *LINKED):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("importlinter")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(cache_dir=None))"
    return _run("-c", code, cwd=root)


def test_links_lead_to_the_top_level_folders() -> None:
    assert {name: os.readlink(PACKAGE / name) for name in LINKED} == {name: f"../{name}" for name in LINKED}


def test_layers_hold(copied: Path) -> None:
    done = _lint_imports(copied)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("module", "line", "importer", "imported"),
    [
        pytest.param("sketches", "import autosched.features", "sketches", "features", id="module level"),
        pytest.param(
            "features",
            "def late() -> object:\n    from autosched import models\n\n    return models",
            "features",
            "models",
            id="function-local",
        ),
        pytest.param(
            "sketches",
            "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import autosched.models",
            "sketches",
            "models",
            id="type checking",
        ),
    ],
)
def test_a_planted_upward_import_is_found(copied: Path, module: str, line: str, importer: str, imported: str) -> None:
    (copied / module / "planted.py").write_text(f'"""Planted."""\n\n{line}\n')
    done = _lint_imports(copied)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"autosched.{importer} is not allowed to import autosched.{imported}" in done.stdout
    assert f"autosched.{importer}.planted -> autosched.{imported}" in done.stdout


def test_a_planted_import_of_triton_by_a_feature_is_found(copied: Path) -> None:
    (copied / "features" / "planted.py").write_text('"""Planted."""\n\n\ndef late() -> None:\n    import triton\n')
    done = _lint_imports(copied)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "autosched.features.planted -> triton" in done.stdout


def test_a_module_without_a_layer_is_found(copied: Path) -> None:
    (copied / "autosched" / "planted.py").write_text('"""Planted."""\n')
    done = _lint_imports(copied)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "planted" in done.stdout


def test_no_module_loads_a_heavy_library() -> None:
    modules = sorted(
        (name for name, _ in _modules() if not name.endswith("__main__")), key=lambda name: name in MAY_LOAD_HEAVY
    )
    if importlib.util.find_spec("triton") is None:
        modules = [name for name in modules if name not in MAY_LOAD_HEAVY]
    code = f"""
import importlib, json, sys
guilty = {{}}
for name in json.load(sys.stdin):
    before = set(sys.modules)
    importlib.import_module(name)
    heavy = sorted(({set(HEAVY)!r} & set(sys.modules)) - before)
    if heavy:
        guilty[name] = heavy
json.dump({{"guilty": guilty, "loaded": sorted(n for n in sys.modules if n.startswith("autosched"))}}, sys.stdout)
"""
    done = _run("-c", code, cwd=ROOT, text=json.dumps(modules))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert {name: heavy for name, heavy in answer["guilty"].items() if name not in MAY_LOAD_HEAVY} == {}
    assert "autosched" in answer["loaded"]
    assert set(modules) <= set(answer["loaded"])


READS = frozenset({"environ", "environb", "getenv", "getenvb"})


def _environment_reads(tree: ast.AST) -> Iterator[int]:
    """Lines that read the environment; setting or deleting a variable of one's own process is no read."""
    written: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            written.add(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            written.add(node.func.value)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in READS and node not in written:
                yield node.lineno
            case ast.ImportFrom(module="os", names=names) if READS & {alias.name for alias in names}:
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("import os\nos.environ['A']", 1),
        ("import os\nos.environ.get('A')", 1),
        ("import os\ndict(os.environ, A='1')", 1),
        ("import os\nos.getenv('A')", 1),
        ("from os import environ", 1),
        ("import os\nos.environ['A'] = '1'", 0),
        ("import os\ndel os.environ['A']", 0),
        ("import os\nos.environ.update({'A': '1'})", 0),
    ],
)
def test_environment_reads_are_seen(source: str, reads: int) -> None:
    assert len(list(_environment_reads(ast.parse(source)))) == reads


def test_only_settings_reads_the_environment() -> None:
    guilty = [
        f"{path.relative_to(ROOT)}:{line}"
        for _, path in _modules()
        if path != PACKAGE / READS_ENVIRONMENT
        for line in _environment_reads(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert guilty == []


def test_no_file_names_a_machines_path() -> None:
    pattern = re.compile(r"(?<![\w.$}\]*-])/(?:home|root|work|opt|mnt|srv|data|Users|workspace)/[\w.-]")
    guilty = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in _texts()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert guilty == []


@pytest.mark.parametrize(
    "source",
    [
        "import models\n",
        "from sketches.op import Op\n",
        "def late() -> object:\n    import features.schema as schema\n\n    return schema\n",
        "from tuning_logs import recorded\n",
    ],
)
def test_a_top_level_import_of_a_linked_folder_is_found(source: str) -> None:
    pytest.importorskip("ruff")
    arguments = ("-m", "ruff", "check", "--no-cache", "--select", "TID251", "--stdin-filename", "autosched/planted.py")
    done = _run(*arguments, "-", cwd=ROOT, text=source)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "TID251" in done.stdout


def test_a_full_import_of_a_linked_folder_is_accepted() -> None:
    pytest.importorskip("ruff")
    arguments = ("-m", "ruff", "check", "--no-cache", "--select", "TID251", "--stdin-filename", "autosched/planted.py")
    done = _run(*arguments, "-", cwd=ROOT, text="from autosched.sketches import op\nimport autosched.models\n")
    assert done.returncode == 0, done.stdout + done.stderr
