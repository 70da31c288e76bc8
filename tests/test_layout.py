"""What the tree promises to those who look for something in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import hf_lossy_assist

PACKAGE = Path(hf_lossy_assist.__file__).parent
TESTS = Path(__file__).parent
MOST_LINES = 400
MOST_AT_THE_TOP = 12


def sources(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.py")) if path.is_file())


def test_a_class_s_name_is_used_once():
    places = defaultdict(list)
    for path in sources(PACKAGE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert len(places) > 100
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_a_module_s_name_is_used_once():
    """Apart from commands, which are named after what they run."""
    places = defaultdict(list)
    for path in sources(PACKAGE):
        if not path.stem.startswith("__") and path.parent.name != "cli":
            places[path.stem].append(str(path.relative_to(PACKAGE)))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_few_modules_are_at_the_top():
    top = [path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")]
    assert len(top) <= MOST_AT_THE_TOP, sorted(top)


def test_no_file_is_long():
    lengths = {
        str(path.relative_to(PACKAGE.parent)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in (PACKAGE, TESTS)
        for path in sources(folder)
    }
    assert not {path: length for path, length in lengths.items() if length > MOST_LINES}


def test_no_test_module_imports_from_another():
    found = [
        f"{path.relative_to(TESTS)}: {line}"
        for path in sources(TESTS)
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) \S*\btest_", line)
    ]
    assert not found


def test_a_room_of_tests_is_a_room_of_the_package():
    """Apart from those that try the whole package in some way, and those of what lies beside it."""
    of_their_own = {"abuse", "benchmarks", "golden", "trial", "hub"}
    rooms = {str(path.parent.relative_to(TESTS)) for path in sources(TESTS)} - {"."}
    assert not [room for room in sorted(rooms - of_their_own) if not (PACKAGE / room).is_dir()]


IMPORTS = """
import sys
import hf_lossy_assist
assert not {"torch", "transformers"} & sys.modules.keys()
names = [x for x in dir(hf_lossy_assist) if x != "__version__"]
assert names == sorted(hf_lossy_assist.__all__)
from transformers import GenerationMixin
before, loaded = dict(vars(GenerationMixin)), set(sys.modules)
hf_lossy_assist.Eagle3.from_pretrained
assert "transformers.models.llama.modeling_llama" not in sys.modules, "a class of heads, and no models"
assert all(getattr(hf_lossy_assist, name) is not None for name in names)
assert dict(vars(GenerationMixin)) == before, "nothing is changed"
assert not {"matplotlib", "sklearn", "datasets", "typer"} & (set(sys.modules) - loaded), "heavy imports"
"""


def test_importing_the_package_imports_nothing_else_changes_nothing_and_shows_what_is_public():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
