"""``transformers serve`` in this process, loading assistants and answering our errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..compat.serving import LoadDraft, server_of
from ..enabling import enabled, last_stats
from ..errors import LossyError
from .assisting import Settings, assist, restrict

STATS_ROUTE = "/lossy_stats"


def run(serve: Callable[[], Any], settings: Settings) -> None:
    """Run transformers' server with this package enabled; return when it has been stopped.

    ``serve`` builds and runs the server: ``transformers.cli.serve.Serve`` with its arguments. ``settings`` are for all
    models it loads. Raises :class:`LossyError` when the model that is loaded at the start can't be assisted.
    """

    def prepare(
        model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, load_model: LoadDraft, load_tokenizer: LoadDraft
    ) -> None:
        settings.apply(model)
        assist(model, tokenizer, load_model, load_tokenizer)
        restrict(model, settings)

    with server_of(prepare, _extend), enabled():
        serve()


def _extend(app: Any, manager: Any) -> None:
    """Let the app answer our errors, and say what the last run of every model did."""
    from fastapi import Request
    from fastapi.responses import JSONResponse

    async def refuse(_: Request, error: LossyError) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error), "type": "invalid_request_error"}}, status_code=400)

    def lossy_stats() -> dict[str, Any]:
        models = {name: timed.model for name, timed in list(manager.loaded_models.items())}
        stats = {name: last_stats(model) for name, model in models.items() if model is not None}
        return {name: value.to_dict() for name, value in stats.items() if value is not None}

    app.add_exception_handler(LossyError, refuse)
    app.add_api_route(STATS_ROUTE, lossy_stats, methods=["GET"])
