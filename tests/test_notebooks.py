"""Every notebook runs, and is kept without what it printed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from hf_lossy_assist import disable, enable

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(notebook: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"]]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = {"__name__": "__main__"}
    disable()  # notebooks enable for themselves
    try:
        for cell in cells:
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    finally:
        enable()
