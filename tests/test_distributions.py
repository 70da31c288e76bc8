"""The files for the package index, installed and used with nothing but what they require."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from hf_lossy_assist import Eagle3
from hf_lossy_assist.heads import Head

ROOT = Path(__file__).parent.parent
PACKAGE, CARDS = ROOT / "hf_lossy_assist", ROOT / "hub_cards"
LOCAL = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """A folder with sdist and wheel, the wheel built from the sdist, of a copy that nothing was built in before."""
    for name in ("build", "hatchling", "hatch_fancy_pypi_readme"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("distributions")
    (folder / "tree").mkdir()
    for part in (PACKAGE, CARDS):
        shutil.copytree(part, folder / "tree" / part.name, ignore=LOCAL)
    for path in ROOT.iterdir():
        if (path.is_file() and path.suffix in (".md", ".toml", ".cff")) or path.name == "LICENSE":
            shutil.copy(path, folder / "tree")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(folder / "tree")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_they_hold_the_package_and_nothing_else(distributions: Path):
    (wheel,), (sdist,) = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    own, cards = (
        {
            path.relative_to(ROOT).as_posix()
            for path in part.rglob("*")
            if path.is_file() and not {"__pycache__", "lossy-assist-results"} & {*path.parts}
        }
        for part in (PACKAGE, CARDS)
    )
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    assert names == own | {f"{PACKAGE.name}/{name}" for name in cards}
    with tarfile.open(sdist) as archive:
        contents = {name.partition("/")[2] for name in archive.getnames()}
    beside = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "SECURITY.md", "pyproject.toml", "PKG-INFO"}
    assert contents == own | cards | beside
    links = re.findall(r"\]\(([^)#]+)", metadata)
    assert links
    assert all(link.startswith("https://") for link in links), "links of the index's page lead to the repository"


BASE_ONLY = '''
"""Hides what a base install does not bring: every module of a distribution that the package does not require."""

import re
import sys
from importlib import metadata
from importlib.machinery import PathFinder

from packaging.requirements import Requirement


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


needed, waiting = set(), ["hf-lossy-assist", "packaging"]
while waiting:
    name = plain(waiting.pop())
    if name in needed:
        continue
    try:
        required = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # of another platform
        continue
    needed.add(name)
    for each in map(Requirement, required):
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            waiting.append(each.name)
HIDDEN = {
    module
    for module, owners in metadata.packages_distributions().items()
    if not needed & {plain(owner) for owner in owners}
}


class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)


sys.meta_path = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
'''

USE = """
import importlib.util
import sys

import hf_lossy_assist

assert not {"torch", "transformers"} & sys.modules.keys()
print(hf_lossy_assist.__file__)
names = [x for x in dir(hf_lossy_assist) if x != "__version__"]
assert names == sorted(hf_lossy_assist.__all__)
for name in ("sklearn", "scipy", "datasets", "matplotlib", "pyarrow", "pytest"):
    assert importlib.util.find_spec(name) is None, name
from transformers import GenerationMixin

before, loaded = dict(vars(GenerationMixin)), set(sys.modules)
hf_lossy_assist.Eagle3.from_pretrained
assert "transformers.models.llama.modeling_llama" not in sys.modules, "a class of heads, and no models"
assert all(getattr(hf_lossy_assist, name) is not None for name in names)
assert dict(vars(GenerationMixin)) == before, "nothing is changed"
assert "cyclopts" not in set(sys.modules) - loaded, "the command line"

from hf_lossy_assist import JudgeHead, pairs
from hf_lossy_assist.heads import Head
own = [Head.from_pretrained(path) for path in sorted(pairs.hub_cards().glob("qwen-coder-*"))]
print("heads of qwen-coder:", [head.config.task for head in own])
pair = pairs.load("arithmetic")
inputs = pair.tokenizer("Tom has 3 apples.", return_tensors="pt")
for name, head in pair.heads.items():
    head.save_pretrained(f"saved-{name}")
repository = pairs.hub_cards() / "lossy-assist-generate"
kwargs = {"assistant_model": pair.draft, "max_new_tokens": 20, "lossy_mode": "judge"}
kwargs |= {"custom_generate": str(repository), "trust_remote_code": True}
ids = pair.target.generate(**inputs, **kwargs, lossy_head=JudgeHead.from_pretrained("saved-judge"))
print("generated", ids.shape[1] - inputs.input_ids.shape[1])
with hf_lossy_assist.enabled(pair.target):
    pair.target.generate(**inputs, assistant_model=pair.draft, lossy_mode="dropmatch", max_new_tokens=8)
try:
    hf_lossy_assist.evaluate(pair.target, pair.draft, tokenizer=pair.tokenizer, task=pair.task)
except hf_lossy_assist.LossyUnsupportedError as error:
    print(error)
import hf_lossy_assist.calibration
from hf_lossy_assist.cli import main

short = ["--pair", "arithmetic", "--max-new-tokens", "3"]
main(["generate", *short, "--mode", "topk:k=3"])
main(["inspect", *short, "--out", "page.html"])
"""

DEMO = """
import runpy
from pathlib import Path

sys.argv = [str(Path(sys.executable).with_name("lossy-assist")), "demo", "--limit", "1"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def environment(folder: Path, *what: str) -> Path:
    """Return the site-packages of an environment with ``what``; it sees what is installed here, not this checkout."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Of a folder that a .pth file names, other .pth files are not read: this checkout's is not.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    # Else pip finds that the package is there already.
    command = [*pip, "install", "--ignore-installed", "--no-deps", "--no-index", "--no-compile", *what]
    run(command, folder)
    return site


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory) -> Path:
    """The ``bin`` of an environment with the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("environment")
    (wheel,) = distributions.glob("*.whl")
    site = environment(folder, str(wheel))
    (site / "zz_base_only.py").write_text(BASE_ONLY)
    (site / "zz_base_only.pth").write_text("import zz_base_only\n")
    return folder / "bin"


def run(command: list[str | Path], folder: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_wheel_is_used_from_python(installed: Path, own_heads: str, tmp_path: Path):
    """Importing the package imports nothing else, changes nothing and shows what is public; README and demo run."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block, printed = re.search(r"\n```python\n((?:(?!```).)*)```\n+```text\n(.*?\n)```", text, re.DOTALL).groups()
    said = run([installed / "python", "-c", f"{USE}\n{HEADS}\n{block}\n{DEMO}"], tmp_path)
    assert said.startswith(str(installed.parent))
    (folder,) = re.findall(rf"^(.*)\n{re.escape(own_heads)}$", said, re.M)
    assert Path(folder).parts[-3:] == ("site-packages", PACKAGE.name, CARDS.name)
    assert Path(folder).is_relative_to(installed.parent)
    assert "\nheads of qwen-coder: ['gsm8k', 'code', 'prompts']\n" in said
    assert re.search(r"\ngenerated \d+\n", said)
    assert (tmp_path / "page.html").stat().st_size
    assert "`evaluate` needs packages that are not installed" in said
    assert "pip install 'hf-lossy-assist[lab]'" in said
    assert f"\n{printed}" in said
    assert "\nVerdict\n" in said


HEADS = """
print(pairs.hub_cards())
print({name: head.checksum for name, head in pair.heads.items()}, pair.eagle3.fc.weight.sum().item())
"""
OF_PAIR = "from hf_lossy_assist import pairs\npair = pairs.load('arithmetic')\n"


@pytest.fixture(scope="module")
def own_heads() -> str:
    heads = {name: Head.from_pretrained(CARDS / f"arithmetic-{name}").checksum for name in ("judge", "verifier")}
    return f"{heads} {Eagle3.from_pretrained(CARDS / 'arithmetic-eagle3').float().fc.weight.sum().item()}"


def test_heads_are_found_in_a_checkout(own_heads: str, capsys: pytest.CaptureFixture[str]):
    exec(OF_PAIR + HEADS)
    assert capsys.readouterr().out.splitlines()[:2] == [str(CARDS), own_heads]


def test_heads_are_found_in_an_editable_install(own_heads: str, distributions: Path, tmp_path: Path):
    """There is no second copy of them: those of the checkout count, also after a change."""
    tree = distributions / "tree"
    site = environment(tmp_path / "environment", "--no-build-isolation", "--editable", str(tree))
    said = run([tmp_path / "environment" / "bin" / "python", "-c", OF_PAIR + HEADS], tmp_path)
    assert said.splitlines()[:2] == [str(tree / CARDS.name), own_heads]
    assert not list(site.rglob("*.safetensors"))
