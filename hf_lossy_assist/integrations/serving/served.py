"""Requests to a server: their lossy fields, and the statistics in their responses."""

from __future__ import annotations

import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ...call.config import FIELDS
from ...compat.serving import Endpoint
from ...core.statistics import LossyStats
from .permission import check_request, check_tokens
from .request_body import check_body
from .settings import Settings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

RESPONSE_FIELD = "lossy_stats"
"""The field with the statistics, in a response or in a stream's last event."""

_LAST = b'"usage":'  # only in a stream's last event; inside a JSON string the quotes are escaped


@dataclass(eq=False)
class ServedRequest:
    """One request: its body, the configuration of its call, and the call's statistics."""

    receive: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    config: GenerationConfig | None = None
    stats: LossyStats | None = None


class ServedRequests:
    """The requests that a server is answering."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._current: ContextVar[ServedRequest] = ContextVar("served request")
        # By the identity of the configuration, which lives as long as the request.
        self._by_config: weakref.WeakValueDictionary[int, ServedRequest] = weakref.WeakValueDictionary()

    def check(self, body: dict[str, Any], endpoint: Endpoint) -> None:
        """Refuse a body that is not allowed; keep any other for :meth:`begin`."""
        check_body(body, endpoint, self._settings.limits)
        self._current.get().body = body

    def begin(self, model: PreTrainedModel, prompt: Tensor, config: GenerationConfig) -> None:
        """Write the lossy fields of the current request into its configuration, or refuse them.

        A request with its own mode does not use the model's settings and head.
        """
        request, limits = self._current.get(), self._settings.limits
        body, own = request.body, model.generation_config
        given = {name: body[name] for name in FIELDS if name in body}
        if "lossy_mode" in given:
            given = dict.fromkeys(FIELDS) | given
        for name, value in given.items():
            setattr(config, name, value)
        if given or "generation_config" in body:
            check_request(config, own, self._settings)
        check_tokens(model, prompt, config, body.get("logit_bias", ()), limits)
        if config.max_new_tokens is not None:  # the server sets it if the request does not
            config.max_new_tokens = min(config.max_new_tokens, limits.new_tokens)
        request.config = config
        self._by_config[id(config)] = request

    async def client_left(self) -> None:
        """Wait until the client of the current request has left; its body has been read before."""
        while (await self._current.get().receive())["type"] != "http.disconnect":
            pass

    def record(self, config: GenerationConfig | None, stats: LossyStats) -> None:
        """Store the statistics of the call with a request's configuration."""
        if (request := self._by_config.get(id(config))) is not None:
            request.stats = stats

    async def answer(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer a request, and add the statistics to the response; a middleware."""
        served = ServedRequest(request.receive)
        self._current.set(served)
        response = await call_next(request)
        if served.config is not None:
            # A stream's parts pass one by one; any other response is one JSON object.
            streams = response.headers.get("content-type", "").startswith("text/event-stream")
            response.body_iterator = (_with_last_event if streams else _with_field)(response.body_iterator, served)
            if not streams:
                del response.headers["content-length"]
        return response


async def _with_field(parts: AsyncIterator[bytes], served: ServedRequest) -> AsyncIterator[bytes]:
    yield _extended(b"".join([part async for part in parts]), served)


async def _with_last_event(parts: AsyncIterator[bytes], served: ServedRequest) -> AsyncIterator[bytes]:
    async for part in parts:
        events = part.split(b"\n\n") if _LAST in part else [part]
        yield b"\n\n".join(_extended_event(event, served) for event in events)


def _extended_event(event: bytes, served: ServedRequest) -> bytes:
    head, data, body = event.partition(b"data: ")
    return head + data + _extended(body, served) if _LAST in event else event


def _extended(body: bytes, served: ServedRequest) -> bytes:
    if served.stats is None:
        return body
    value = json.loads(body)
    # The last event of /v1/responses contains the response.
    value.get("response", value)[RESPONSE_FIELD] = served.stats.to_dict()
    return json.dumps(value).encode()
