"""The files for the package index, installed and used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hf_lossy_assist"
CARDS = "hf_lossy_assist/hub_cards/lossy-assist-"
LOCAL = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """A folder with sdist and wheel, the wheel built from the sdist, of a copy that nothing was built in before."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "tree", symlinks=True, ignore=LOCAL)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(folder / "tree")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_they_hold_the_package_and_nothing_else(distributions: Path):
    (wheel,), (sdist,) = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    own = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    own = {name for name in own if "__pycache__" not in name and "/hub_cards/" not in name}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    assert {name for name in names if "/hub_cards/" not in name} == own
    assert all(name.startswith(CARDS) for name in names - own)
    assert {f"{CARDS}{name}" for name in ("generate/custom_generate/generate.py", "space/app.py")} <= names
    with tarfile.open(sdist) as archive:
        contents = {name.partition("/")[2] for name in archive.getnames()}
    assert names | {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "SECURITY.md", "pyproject.toml"} <= contents
    assert not any(name.startswith(("tests", "benchmarks", "docs", "examples")) for name in contents)
    assert "](docs/" not in metadata, "links of the index's page lead to the repository"
    assert "/blob/main/docs/results.md)" in metadata


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
USE = f"""
{IMPORTS}
import runpy
from importlib.resources import files
from hf_lossy_assist import pairs
from hf_lossy_assist.cli import app

print(hf_lossy_assist.__file__)
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    assert not end.code
app(["generate", "--pair", "arithmetic", "--mode", "judge", "--max-new-tokens", "20"], standalone_mode=False)
pair = pairs.load("arithmetic")
inputs = pair.tokenizer("Tom has 3 apples.", return_tensors="pt")
repository = files("hf_lossy_assist") / "hub_cards" / "lossy-assist-generate"
ids = pair.target.generate(
    **inputs, assistant_model=pair.draft, custom_generate=str(repository), trust_remote_code=True,
    lossy_mode="topk", max_new_tokens=20,
)
print("generated", ids.shape[1] - inputs.input_ids.shape[1])
"""


def test_the_wheel_works_in_a_fresh_environment(distributions: Path, tmp_path: Path):
    """One that sees the packages installed here, but not this checkout.

    Importing the package imports nothing else, changes nothing and shows what is public.
    """
    venv.create(tmp_path / "venv", symlinks=True)
    folder = tmp_path / "venv" / "bin"
    (wheel,) = distributions.glob("*.whl")
    quiet = {"check": True, "capture_output": True, "text": True, "cwd": tmp_path}
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "python")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], **quiet)
    site = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")})
    # Of a folder that a .pth file names, other .pth files are not read: this checkout's is not.
    (Path(site) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    script = folder / "lossy-assist"
    assert script.read_text().startswith(f"#!{folder / 'python'}")
    command = [str(folder / "python"), "-c", USE, str(script), "--version"]
    used = subprocess.run(command, env=environment, **quiet).stdout
    assert used.splitlines()[0].startswith(site)
    assert used.splitlines()[-1] == "generated 20"
