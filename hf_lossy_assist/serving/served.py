"""Requests to a server: what each asks of this package, and what its response says of it."""

from __future__ import annotations

import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig

from ..config import FIELDS, parse
from ..errors import LossyValueError
from ..heads.checks import brief
from ..stats import LossyStats
from .assisting import FIELD, Settings, certificate_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

RESPONSE_FIELD = "lossy_stats"
"""The field of a response, and of a stream's last event, with the run's statistics."""

_LAST = b'"usage":'  # of a stream's events, only the last has it; inside a JSON string its quotes are escaped


@dataclass(eq=False)
class ServedRequest:
    """One request: the configuration that it is answered with, and the statistics of that."""

    config: GenerationConfig | None = None
    stats: LossyStats | None = None


class ServedRequests:
    """The requests that a server is at work on.

    Parameters
    ----------
    settings
        What requests may ask for.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._current: ContextVar[ServedRequest | None] = ContextVar("served request", default=None)
        # By the identity of the configuration, which is as much alive as the request.
        self._by_config: weakref.WeakValueDictionary[int, ServedRequest] = weakref.WeakValueDictionary()

    def configure(self, body: Mapping[str, Any], own: GenerationConfig, config: GenerationConfig) -> None:
        """Write the lossy fields of a request's body into its configuration, or refuse them.

        ``own`` is the model's. A mode of the request leaves nothing of the settings and the head that belong to the
        model's; a field that is null counts as left out.
        """
        given = {name: body[name] for name in FIELDS if body.get(name) is not None}
        if "lossy_mode" in given:
            given = dict.fromkeys(FIELDS) | given
        for name, value in given.items():
            setattr(config, name, value)
        if given or body.get("generation_config") is not None:
            check_request(config, own, self._settings)
        if (request := self._current.get()) is not None:
            request.config = config
            self._by_config[id(config)] = request

    def record(self, config: GenerationConfig | None, stats: LossyStats) -> None:
        """Take the statistics of the call with a request's configuration."""
        if (request := self._by_config.get(id(config))) is not None:
            request.stats = stats

    async def answer(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer a request, and add the statistics to the response: a middleware."""
        served = ServedRequest()
        self._current.set(served)
        response = await call_next(request)
        if served.config is not None:
            # Of a stream, the parts are passed on one by one; else the whole is one JSON object.
            streams = response.headers.get("content-type", "").startswith("text/event-stream")
            response.body_iterator = (_with_last_event if streams else _with_field)(response.body_iterator, served)
            if not streams:
                del response.headers["content-length"]
        return response


def check_request(asked: GenerationConfig, own: GenerationConfig, settings: Settings) -> None:
    """Refuse heads, folders and compilation that the server's operator has not allowed, and what can't work.

    Parameters
    ----------
    asked
        The request's configuration.
    own
        The model's, all of which is allowed.
    settings
        What else is.
    """
    mode, config, head = (getattr(asked, name, None) for name in FIELDS)
    mode = getattr(own, "lossy_mode", None) if mode is None else mode
    own_config = getattr(own, "lossy_config", None)
    allowed = [*settings.allowed_heads, *_heads_of(getattr(own, "lossy_head", None))]
    for one in _heads_of(head):
        if one not in allowed:
            raise LossyValueError(
                f"`lossy_head` of a request has to be one of those that this server allows, {allowed}, but is "
                f"{brief(one)}"
            )
    if certificate_of(config) not in (None, certificate_of(own_config)):
        raise LossyValueError(
            "`certificate` in a request's `lossy_config` has to be the one that this server has, if any; leave it out"
        )
    if _compiles(config) and not (settings.allow_compile or _compiles(own_config)):
        raise LossyValueError("`compile` in a request's `lossy_config` is not allowed by this server; leave it out")
    if mode is None:
        if config is not None or head is not None:
            raise LossyValueError("`lossy_config` and `lossy_head` of a request need a `lossy_mode`; add one")
        return
    parse(mode, config, head)
    if getattr(own, FIELD, None) is None and asked.prompt_lookup_num_tokens is None:
        raise LossyValueError(
            f"`lossy_mode` {brief(mode)} of a request needs a drafter, and this server has none for its model; start "
            "it with `--assistant`, or leave the field out"
        )


def _heads_of(head: Any) -> list[Any]:
    heads = head.values() if isinstance(head, Mapping) else [head]
    return [one for one in heads if one is not None]


def _compiles(config: Any) -> bool:
    return isinstance(config, Mapping) and bool(config.get("compile"))


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
    # Of the events of /v1/responses, the last has the response in it.
    value.get("response", value)[RESPONSE_FIELD] = served.stats.to_dict()
    return json.dumps(value).encode()
