"""``transformers serve`` in this process, loading assistants and answering our errors.

transformers builds its server in one go, from parts that it looks up in its modules by name; two of these names stand
for ours while it runs.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ..enabling import enabled, last_stats
from ..errors import LossyError
from .assisting import Settings, assist

STATS_ROUTE = "/lossy_stats"


def run(serve: Callable[[], Any], settings: Settings) -> None:
    """Run transformers' server with this package enabled; return when it has been stopped.

    Parameters
    ----------
    serve
        Builds and runs the server: ``transformers.cli.serve.Serve`` with its arguments.
    settings
        For all models it loads.

    Raises
    ------
    LossyError
        When the model that is loaded at the start can't be assisted.
    """
    from transformers.cli.serving import model_manager, server

    manager = _manager_type(model_manager.ModelManager, settings)
    build = functools.partial(_build_server, server.build_server)
    with (
        _replaced(model_manager, "ModelManager", manager),
        _replaced(server, "build_server", build),
        enabled(),
    ):
        serve()


@contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def _manager_type(base: type, settings: Settings) -> type:
    class AssistedModelManager(base):
        """Gives every model that it loads its assistant."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._assisted: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()
            self._assisting = threading.Lock()
            super().__init__(*args, **kwargs)  # may load a model already

        def load_model_and_processor(self, *args: Any, **kwargs: Any) -> tuple[PreTrainedModel, Any]:
            model, processor = super().load_model_and_processor(*args, **kwargs)
            with self._assisting:
                if model not in self._assisted and model.can_generate():
                    settings.apply(model)
                    assist(
                        model,
                        getattr(processor, "tokenizer", processor),
                        functools.partial(self._load_draft, device=model.device),
                        functools.partial(AutoTokenizer.from_pretrained, trust_remote_code=self.trust_remote_code),
                    )
                    self._assisted.add(model)
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

    return AssistedModelManager


def _build_server(build: Callable[..., Any], model_manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Return transformers' app, which also answers our errors and says what the last run of every model did."""
    from fastapi import Request
    from fastapi.responses import JSONResponse

    app = build(model_manager, *args, **kwargs)

    async def refuse(_: Request, error: LossyError) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error), "type": "invalid_request_error"}}, status_code=400)

    def lossy_stats() -> dict[str, Any]:
        models = {name: timed.model for name, timed in list(model_manager.loaded_models.items())}
        stats = {name: last_stats(model) for name, model in models.items() if model is not None}
        return {name: _plain(value) for name, value in stats.items() if value is not None}

    app.add_exception_handler(LossyError, refuse)
    app.add_api_route(STATS_ROUTE, lossy_stats, methods=["GET"])
    return app


def _plain(stats: Any) -> dict[str, Any]:
    values = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats) if field.repr}
    return values | {"mean_accepted": stats.mean_accepted, "tokens_per_round": stats.tokens_per_round}
