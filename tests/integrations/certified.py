"""A certificate of the bundled pair's typical acceptance, for engines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_lossy_assist.acceptors import Typical
from hf_lossy_assist.generation.certificate import Certificate, TestedSetting
from hf_lossy_assist.generation.config import LossyConfig
from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.pairs import Pair


def save_certificate(pair: Pair, folder: Path, gamma: int) -> str:
    """Save it into a folder, and return the folder's name."""
    tested = TestedSetting(
        "typical",
        "typical",
        {"lossy_mode": "typical", "lossy_config": None, "num_assistant_tokens": gamma, "engine": "vllm"},
        "certified",
    )
    identities: dict[str, Any] = {role: asdict(ModelIdentity.of(getattr(pair, role))) for role in ("target", "draft")}
    Certificate(
        task="arithmetic", split="test", problems=9, digest="0", max_loss=1, confidence=95, reference="lossless",
        chosen="typical", tested=[tested], rule=LossyConfig(Typical()).in_full(), temperature=None, heads={},
        **identities,
    ).save(folder)  # fmt: skip
    return str(folder)
