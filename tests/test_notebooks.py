"""Every notebook runs, and is kept without what it printed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One after another in one kernel, which imports torch once; none sees another's names."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebooks = [nbformat.read(path, as_version=4) for path in NOTEBOOKS]
    cells = [cell for notebook in notebooks for cell in (*notebook.cells, nbformat.v4.new_code_cell("%reset -f"))]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    for i, cell in enumerate(cells):  # ids are unique in a notebook
        cell["id"] = f"cell-{i}"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")]))
    whole = nbformat.v4.new_notebook(metadata=notebooks[0].metadata, cells=cells)
    nbclient.NotebookClient(whole, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
