"""Every notebook runs from top to bottom, on recorded logs, and shows something at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbclient: Any = pytest.importorskip("nbclient")
nbformat: Any = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = pytest.mark.slow


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS, f"no notebook in {FOLDER}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3")
    done = client.execute(cwd=str(FOLDER.parent))
    code = [cell for cell in done.cells if cell.cell_type == "code" and cell.source.strip()]
    assert code
    assert all(cell.execution_count for cell in code)
    assert code[-1].outputs, "the last cell shows nothing"
