"""The bundled pair as a server finds it: a folder that names its assistant."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_lossy_assist import pairs

FIELDS = {"lossy_mode": "topk", "lossy_config": {"k": 2, "break_even": False}, "lossy_assistant": "../draft"}


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes a target's folder with some fields, its draft beside it."""
    bundled = Path(pairs.__file__).parent / "arithmetic"

    def make(**fields: Any) -> Path:
        folder = tmp_path_factory.mktemp("served")
        for role in ("target", "draft"):
            shutil.copytree(bundled / role, folder / role)
        path = folder / "target" / "generation_config.json"
        config = json.loads(path.read_text())
        config.pop("_from_model_config", None)
        path.write_text(json.dumps(config | {"num_assistant_tokens": 8} | fields))
        template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
        (folder / "target" / "chat_template.jinja").write_text(template)
        return folder / "target"

    return make
