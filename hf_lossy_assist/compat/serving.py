"""transformers' server: the names that it looks up in its modules, and replacements for them.

transformers builds its server in one call from parts under a few names; these names are replaced inside a block.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ..errors import LossyValueError
from .models import load_errors

LoadDraft = Callable[..., Any]
"""``load(id_or_folder, revision=...)``, as ``from_pretrained`` of a model or a tokenizer."""

Prepare = Callable[[PreTrainedModel, PreTrainedTokenizerBase, LoadDraft, LoadDraft], None]

_PROMPTS = ("messages", "input", "prompt")
CLIENT_CLOSED_REQUEST = 499
"""nginx's status, which no client receives."""


@dataclass(frozen=True)
class Endpoint:
    """The endpoint that a request is sent to."""

    required: tuple[str, ...]  # fields that the body must have
    unread: Collection[str] = ()  # fields that the server accepts and ignores
    template_variables: Collection[str] = ()  # variables of the chat template that the operator has set


class Requests(Protocol):
    """An observer of the requests for text."""

    def check(self, body: dict[str, Any], endpoint: Endpoint) -> None:
        """Refuse a body before any work is done for it; may remove fields."""

    def begin(self, model: PreTrainedModel, prompt: Tensor, config: GenerationConfig) -> None:
        """Refuse the generation that is about to start, or change its configuration."""

    async def client_left(self) -> None:
        """Return when the client of the current request has left."""


@contextmanager
def server_of(
    prepare: Prepare, extend: Callable[[Any, Any], None], fields: Collection[str], requests: Requests
) -> Iterator[None]:
    """Inside the block, let new servers prepare the models that they load, and extend their routes.

    A run ends when its client leaves, even if the answer is not streamed. ``prepare`` is called once with each
    generating model, its tokenizer, and loaders of drafts and their tokenizers with the server's settings. ``extend``
    is called with the FastAPI application and its model manager. ``fields`` are additional fields of a request's body.
    """
    from fastapi import HTTPException
    from transformers.cli.serving import model_manager, response, server, utils

    build, validate = server.build_server, utils.BaseHandler._validate_request
    stream, whole = utils.GenerateManager.generate_streaming, utils.GenerateManager.generate_non_streaming

    def build_extended(manager: Any, *args: Any, **kwargs: Any) -> Any:
        app = build(manager, *args, **kwargs)
        extend(app, manager)
        return app

    def validate_known(self: Any, body: dict[str, Any]) -> None:
        validate(self, {name: value for name, value in body.items() if name not in fields})
        known = self._valid_params_class.__mutable_keys__ - self._unused_fields
        required = next(name for name in _PROMPTS if name in known)
        pinned = self.model_manager.force_model is not None
        endpoint = Endpoint(
            (required,) if pinned else (required, "model"), self._unused_fields, self.chat_template_kwargs
        )
        requests.check(body, endpoint)

    def begin_stream(self: Any, model: Any, processor: Any, inputs: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        requests.begin(model, inputs["input_ids"], config)
        return stream(self, model, processor, inputs, config, *args, **kwargs)

    async def begin_whole(
        self: Any, model: Any, processor: Any, inputs: Any, config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        requests.begin(model, inputs["input_ids"], config)
        streamer = _Interrupter(utils._GenerationCancelled)
        # Beam search, which only the model's own configuration can ask for, does not call streamers.
        beams = config.num_beams or model.generation_config.num_beams or 1
        inputs = inputs if beams > 1 else {**inputs, "streamer": streamer}
        answer = asyncio.ensure_future(whole(self, model, processor, inputs, config, *args, **kwargs))
        leaving = asyncio.ensure_future(requests.client_left())
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            streamer.stop()
            leaving.cancel()
        try:
            return await answer
        except utils._GenerationCancelled:
            raise HTTPException(CLIENT_CLOSED_REQUEST, "the client has left") from None

    with (
        _replaced(model_manager, "ModelManager", _preparing(model_manager.ModelManager, prepare)),
        _replaced(server, "build_server", build_extended),
        _replaced(utils.BaseHandler, "_validate_request", validate_known),
        _reading(utils.BaseHandler, "get_processor_inputs_from_messages", "`messages` (or `input`)"),
        _reading(response.ResponseHandler, "_normalize_input", "`input`"),
        _replaced(utils.GenerateManager, "generate_streaming", begin_stream),
        _replaced(utils.GenerateManager, "generate_non_streaming", begin_whole),
    ):
        yield


class _Interrupter(BaseStreamer):
    """Raises in the call that it streams, at the next tokens after :meth:`stop`."""

    def __init__(self, interruption: type[Exception]) -> None:
        self._interruption = interruption
        self._stopped = threading.Event()

    def put(self, value: Tensor) -> None:
        if self._stopped.is_set():
            raise self._interruption

    def end(self) -> None:
        pass

    def stop(self) -> None:
        self._stopped.set()


@contextmanager
def _replaced(owner: ModuleType | type, name: str, value: Any) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _reading(handler: type, name: str, fields: str) -> Iterator[None]:
    """Turn failures of a function that only reads fields of a request into a refusal."""
    read = getattr(handler, name)

    def readable(*args: Any) -> Any:
        try:
            return read(*args)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise LossyValueError(f"{fields} of a request can't be read: {error!r:.200}") from error

    with _replaced(handler, name, staticmethod(readable)):
        yield


def _preparing(base: type, prepare: Prepare) -> type:
    class PreparingModelManager(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._prepared: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()
            self._preparing = threading.Lock()
            super().__init__(*args, **kwargs)  # may load a model already

        def load_model_and_processor(self, source: str, *args: Any, **kwargs: Any) -> tuple[PreTrainedModel, Any]:
            name = source.removesuffix("@main")
            # Where a model is pinned, transformers checks only requests for text.
            if self.force_model is not None and name != (only := self.__dict__.setdefault("_only", name)):
                raise LossyValueError(f"`model` of a request has to be {only!r} on this server, but is {name!r}")
            with load_errors("`model`", name):
                model, processor = super().load_model_and_processor(source, *args, **kwargs)
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
                # On one device, next to the target's first layer: spreading slows a small model down.
                device_map={"": device},
                trust_remote_code=self.trust_remote_code,
            ).eval()

    return PreparingModelManager
