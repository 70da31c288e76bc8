"""Models in GGUF files, written as folders that transformers loads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


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


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a path to make a folder at, and rename it to ``folder`` in the end, so that ``folder`` is always whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix="partial-") as partial:
        made = Path(partial) / "made"
        yield made
        try:
            os.rename(made, folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
