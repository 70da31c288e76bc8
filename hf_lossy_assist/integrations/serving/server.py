"""``transformers serve`` in this process, with assistants, statistics and our errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...call.config import FIELDS
from ...compat.serving import LoadDraft, server_of
from ...core.statistics import LossyStats
from ...enabling import enabled
from ...errors import LossyError
from .assisting import assist
from .served import ServedRequests
from .settings import Settings
from .totals import Totals

STATS_ROUTE, METRICS_ROUTE = "/lossy_stats", "/metrics"


def run(serve: Callable[[], Any], settings: Settings) -> None:
    """Run transformers' server with this package enabled until it is stopped.

    ``serve`` builds and runs the server: ``transformers.cli.serve.Serve`` with its arguments. ``settings`` apply to all
    models that it loads. A model at the start that can't be assisted raises :class:`LossyError`.
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

    with server_of(prepare, extend, FIELDS, requests), enabled():
        serve()


def _extend(app: Any, totals: Totals, requests: ServedRequests) -> None:
    """Let the app answer our errors, and add statistics to each response and as totals."""
    from fastapi import Request, Response
    from fastapi.responses import JSONResponse
    from jinja2 import TemplateError
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(totals)

    def refusing(words: str) -> Callable[..., Any]:
        async def refuse(_: Request, error: Exception) -> JSONResponse:
            message = words.format(error)
            return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=400)

        return refuse

    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    app.add_exception_handler(LossyError, refusing("{}"))
    app.add_exception_handler(RecursionError, refusing("a field of a request is nested too deep ({})"))
    app.add_exception_handler(TemplateError, refusing("`messages` of a request don't suit the chat template: {}"))
    app.add_api_route(STATS_ROUTE, totals.to_dict, methods=["GET"])
    app.add_api_route(METRICS_ROUTE, metrics, methods=["GET"])
    app.middleware("http")(requests.answer)
