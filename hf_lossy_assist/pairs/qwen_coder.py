"""Qwen2.5-Coder-Instruct with 1.5B and 0.5B parameters: a real pair, from the Hub or from the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from ..errors import LossyValueError
from ..values import from_json

HUB_IDS = {"target": "Qwen/Qwen2.5-Coder-1.5B-Instruct", "draft": "Qwen/Qwen2.5-Coder-0.5B-Instruct"}
REMEDY = "`make qwen-coder` in a checkout"

_FILES = ("*.json", "*.jinja", "*.safetensors")
SIZES = "sizes.json"


def folders() -> list[Path]:
    """Return the folders of the target and the draft: from the Hub, else in the user's cache."""
    try:
        return _from_hub()
    except (HfHubHTTPError, LocalEntryNotFoundError):  # no answer, and not downloaded before
        return [_checked(cache_folder() / role) for role in HUB_IDS]


def at_hand() -> bool:
    """Return whether both models are in the Hub's cache, or both in the user's."""
    try:
        if all(any(folder.glob("*.safetensors")) for folder in _from_hub(local_files_only=True)):
            return True
    except LocalEntryNotFoundError:
        pass
    return all(fault(cache_folder() / role) is None for role in HUB_IDS)


def _from_hub(**options: bool) -> list[Path]:
    return [Path(snapshot_download(hub_id, allow_patterns=_FILES, **options)) for hub_id in HUB_IDS.values()]


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hf_lossy_assist" / "qwen-coder"


def fault(folder: Path) -> str | None:
    """Return what a folder lacks, or None if its files are as long as its ``sizes.json`` says."""
    try:
        sizes = from_json((folder / SIZES).read_bytes(), SIZES)
    except (FileNotFoundError, ValueError):
        return f"{folder / SIZES} is missing or damaged"
    found = {name: (folder / name).stat().st_size if (folder / name).is_file() else 0 for name in sizes}
    wrong = [f"{name!r} has {found[name]:,} of {size:,} bytes" for name, size in sizes.items() if found[name] != size]
    return ", ".join(wrong) or None


def _checked(folder: Path) -> Path:
    if (found := fault(folder)) is not None:
        raise LossyValueError(
            f"the pair 'qwen-coder' has to be on a Hub that answers or whole in {str(folder)!r}, but {found}; "
            f"make it by {REMEDY}"
        )
    return folder
