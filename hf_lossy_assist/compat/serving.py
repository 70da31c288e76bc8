"""transformers' server: what it looks up in its modules by name, and how to stand in for it.

transformers builds its server in one go, from parts that it finds under two names; while the block below is open, these
names stand for parts of ours.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

LoadDraft = Callable[..., Any]
"""``load(id_or_folder, revision=...)``, as ``from_pretrained`` of a model or a tokenizer."""

Prepare = Callable[[PreTrainedModel, PreTrainedTokenizerBase, LoadDraft, LoadDraft], None]

Configure = Callable[[Mapping[str, Any], GenerationConfig, GenerationConfig], None]
"""``configure(body, own, config)`` takes a request, its model's generation configuration, and the request's."""


@contextmanager
def server_of(
    prepare: Prepare, extend: Callable[[Any, Any], None], fields: Collection[str], configure: Configure
) -> Iterator[None]:
    """Let servers that are built inside the block prepare the models that they load, and have more than their routes.

    Requests to them may have more fields.

    Parameters
    ----------
    prepare
        Called once with each model that generates, its tokenizer, and what loads a draft and a draft's tokenizer the
        way the server loads models.
    extend
        Called with the FastAPI application and its model manager.
    fields
        What a request's body may have besides what the server knows.
    configure
        Called with every request that generates text, before it does; may change its configuration.
    """
    from transformers.cli.serving import model_manager, server, utils

    build = server.build_server

    def build_extended(manager: Any, *args: Any, **kwargs: Any) -> Any:
        app = build(manager, *args, **kwargs)
        extend(app, manager)
        return app

    validate, build_config = utils.BaseHandler._validate_request, utils.BaseHandler._build_generation_config

    def validate_known(self: Any, body: Mapping[str, Any]) -> None:
        validate(self, {name: value for name, value in body.items() if name not in fields})

    def build_configured(
        self: Any, body: Mapping[str, Any], own: GenerationConfig, *args: Any, **kwargs: Any
    ) -> GenerationConfig:
        config = build_config(self, body, own, *args, **kwargs)
        configure(body, own, config)
        return config

    with (
        _replaced(model_manager, "ModelManager", _preparing(model_manager.ModelManager, prepare)),
        _replaced(server, "build_server", build_extended),
        _replaced(utils.BaseHandler, "_validate_request", validate_known),
        _replaced(utils.BaseHandler, "_build_generation_config", build_configured),
    ):
        yield


@contextmanager
def _replaced(owner: ModuleType | type, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


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
