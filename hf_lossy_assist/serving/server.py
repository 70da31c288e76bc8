"""``transformers serve`` in this process, loading assistants and answering our errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..compat.serving import LoadDraft, server_of
from ..config import FIELDS
from ..enabling import enabled
from ..errors import LossyError
from ..stats import LossyStats
from .assisting import Settings, assist
from .served import ServedRequests
from .totals import Totals

STATS_ROUTE, METRICS_ROUTE = "/lossy_stats", "/metrics"


def run(serve: Callable[[], Any], settings: Settings) -> None:
    """Run transformers' server with this package enabled; return when it has been stopped.

    ``serve`` builds and runs the server: ``transformers.cli.serve.Serve`` with its arguments. ``settings`` are for all
    models it loads. Raises :class:`LossyError` when the model that is loaded at the start can't be assisted.
    """
    totals, requests = Totals(), ServedRequests(settings)

    def record(model: PreTrainedModel, config: GenerationConfig | None, stats: LossyStats) -> None:
        totals.add(model.name_or_path, stats)
        requests.record(config, stats)

    def prepare(
        model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, load_model: LoadDraft, load_tokenizer: LoadDraft
    ) -> None:
        settings.apply(model)
        assist(model, tokenizer, load_model, load_tokenizer, record)

    def extend(app: Any, manager: Any) -> None:
        _extend(app, totals, requests)

    with server_of(prepare, extend, FIELDS, requests.configure), enabled():
        serve()


def _extend(app: Any, totals: Totals, requests: ServedRequests) -> None:
    """Let the app answer our errors, and say what has been done for requests: for each, and for all of them."""
    from fastapi import Request, Response
    from fastapi.responses import JSONResponse
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(totals)

    async def refuse(_: Request, error: LossyError) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error), "type": "invalid_request_error"}}, status_code=400)

    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    app.add_exception_handler(LossyError, refuse)
    app.add_api_route(STATS_ROUTE, totals.to_dict, methods=["GET"])
    app.add_api_route(METRICS_ROUTE, metrics, methods=["GET"])
    app.middleware("http")(requests.answer)
