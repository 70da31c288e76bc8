"""transformers' server: what it looks up in its modules by name, and how to stand in for it.

transformers builds its server in one go, from parts that it finds under two names; while the block below is open, these
names stand for parts of ours.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

LoadDraft = Callable[..., Any]
"""``load(id_or_folder, revision=...)``, as ``from_pretrained`` of a model or a tokenizer."""

Prepare = Callable[[PreTrainedModel, PreTrainedTokenizerBase, LoadDraft, LoadDraft], None]


@contextmanager
def server_of(prepare: Prepare, extend: Callable[[Any, Any], None]) -> Iterator[None]:
    """Let servers that are built inside the block prepare the models that they load, and have more than their routes.

    Parameters
    ----------
    prepare
        Called once with each model that generates, its tokenizer, and what loads a draft and a draft's tokenizer the
        way the server loads models.
    extend
        Called with the FastAPI application and its model manager.
    """
    from transformers.cli.serving import model_manager, server

    build = server.build_server

    def build_extended(manager: Any, *args: Any, **kwargs: Any) -> Any:
        app = build(manager, *args, **kwargs)
        extend(app, manager)
        return app

    manager = _preparing(model_manager.ModelManager, prepare)
    with _replaced(model_manager, "ModelManager", manager), _replaced(server, "build_server", build_extended):
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def _preparing(base: type, prepare: Prepare) -> type:
    class PreparingModelManager(base):
        """Prepares every model that it loads."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._prepared: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()
            self._preparing = threading.Lock()
            super().__init__(*args, **kwargs)  # may load a model already

        def load_model_and_processor(self, *args: Any, **kwargs: Any) -> tuple[PreTrainedModel, Any]:
            model, processor = super().load_model_and_processor(*args, **kwargs)
            with self._preparing:
                if model not in self._prepared and model.can_generate():
                    prepare(
                        model,
                        getattr(processor, "tokenizer", processor),
                        functools.partial(self._load_draft, device=model.device),
                        functools.partial(AutoTokenizer.from_pretrained, trust_remote_code=self.trust_remote_code),
                    )
                    self._prepared.add(model)
            return model, processor

        def _load_draft(self, source: str, revision: str, device: Any) -> PreTrainedModel:
            return AutoModelForCausalLM.from_pretrained(
                source,
                revision=revision,
                dtype=self.dtype,
                # Beside the target's first layer: spread over several devices, a small model gets slower.
                device_map={"": device},
                trust_remote_code=self.trust_remote_code,
            ).eval()

    return PreparingModelManager
