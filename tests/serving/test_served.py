"""What requests may ask for, and what their responses say, without a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.responses import JSONResponse, StreamingResponse
from transformers import GenerationConfig

from hf_lossy_assist import LossyValueError, pairs
from hf_lossy_assist.serving import Settings
from hf_lossy_assist.serving.served import ServedRequests
from hf_lossy_assist.stats import LossyStats

JUDGE = str(Path(pairs.__file__).parent / "arithmetic" / "judge")
OWN = {"lossy_assistant": "org/draft"}
STATS = LossyStats(rounds=2, drafted=4, accepted=3, bonus=2)


def configured(fields: dict, settings: Settings | None = None, *, own: dict | None = None, body: bool = True):
    """Return the configuration of a request with fields in its body, or else in its ``generation_config``."""
    own = GenerationConfig(**(OWN if own is None else own))
    config = GenerationConfig(**own.to_dict()) if body else GenerationConfig(**fields)
    asked = fields if body else {"generation_config": json.dumps(fields)}
    ServedRequests(settings or Settings()).configure(asked, own, config)
    return {name: getattr(config, name, None) for name in ("lossy_mode", "lossy_config", "lossy_head")}


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize(
    ("settings", "own", "fields"),
    [
        (Settings(allowed_heads=(JUDGE,)), {}, {"lossy_mode": "judge", "lossy_head": JUDGE}),
        (Settings(), {"lossy_head": JUDGE}, {"lossy_mode": "judge", "lossy_head": JUDGE}),
        (Settings(), {"lossy_head": {"judge": JUDGE}}, {"lossy_mode": "judge", "lossy_head": JUDGE}),
        (Settings(allow_compile=True), {}, {"lossy_mode": "topk", "lossy_config": {"compile": True}}),
        (Settings(), {"lossy_config": {"compile": True}}, {"lossy_mode": "topk", "lossy_config": {"compile": True}}),
        (Settings(), {}, {"lossy_mode": "topk", "lossy_config": {"compile": False, "tree": {"depth": 3}}}),
    ],
)
def test_what_the_operator_allows_may_be_asked_for(settings: Settings, own: dict, fields: dict, body: bool):
    found = configured(fields, settings, own=OWN | own, body=body)
    assert {name: value for name, value in found.items() if value is not None} == fields


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lossy_mode": "judge", "lossy_head": JUDGE}, "`lossy_head` of a request has to be one of .*'org/head'"),
        ({"lossy_mode": "judge", "lossy_head": {"judge": JUDGE}}, "`lossy_head` of a request"),
        ({"lossy_mode": "topk", "lossy_config": {"compile": True}}, "`compile`"),
        ({"lossy_mode": "topk", "lossy_config": {"certificate": "."}}, "`certificate`"),
        ({"lossy_mode": "tpok"}, "did you mean 'topk'"),
        ({"lossy_mode": "topk", "lossy_config": {"K": 3}}, "did you mean 'k'"),
        ({"lossy_config": {"k": 3}}, "need a `lossy_mode`"),
        ({"lossy_mode": []}, "`lossy_mode` has to name at least one rule"),
        ({"lossy_mode": "topk", "lossy_config": "k=3"}, "`lossy_config` has to be a dict"),
    ],
)
def test_what_nobody_allows_or_can_not_work_is_refused(fields: dict, message: str, body: bool):
    with pytest.raises(LossyValueError, match=message):
        configured(fields, Settings(allowed_heads=("org/head",)), body=body)


def test_a_mode_needs_something_that_drafts():
    with pytest.raises(LossyValueError, match="start it with `--assistant`"):
        configured({"lossy_mode": "topk"}, own={})
    assert configured({"lossy_mode": "topk"}, own={"prompt_lookup_num_tokens": 3})["lossy_mode"] == "topk"


def test_a_mode_leaves_nothing_of_the_model_s_and_settings_go_with_it():
    own = OWN | {"lossy_mode": "topk", "lossy_config": {"k": 3}}
    assert configured({"lossy_mode": "typical"}, own=own)["lossy_config"] is None
    assert configured({"lossy_config": {"k": 5}}, own=own) == {
        "lossy_mode": "topk",
        "lossy_config": {"k": 5},
        "lossy_head": None,
    }
    assert configured({"lossy_mode": None}, own=own)["lossy_config"] == {"k": 3}


def answered(response, stats: LossyStats | None = STATS) -> bytes:
    """Return the body of a response after the middleware, to a request that was generated for with statistics."""
    requests, own = ServedRequests(Settings()), GenerationConfig(**OWN)

    async def call_next(request):
        requests.configure({}, own, config := GenerationConfig())
        if stats is not None:
            requests.record(config, stats)
        # As starlette hands a response to a middleware.
        parts = response.body_iterator if hasattr(response, "body_iterator") else _once(response.body)
        return SimpleNamespace(headers=response.headers, body_iterator=parts)

    async def run() -> bytes:
        found = await requests.answer(None, call_next)
        return b"".join([part async for part in found.body_iterator])

    return asyncio.run(run())


async def _once(part: bytes):
    yield part


def test_a_response_says_what_its_run_did():
    assert json.loads(answered(JSONResponse({"id": "a"}))) == {"id": "a", "lossy_stats": STATS.to_dict()}
    assert json.loads(answered(JSONResponse({"id": "a"}), None)) == {"id": "a"}


def test_the_last_event_of_a_stream_says_it():
    events = [
        {"choices": [{"delta": {"content": 'say "usage": so'}}]},
        {"choices": [{"finish_reason": "stop"}], "usage": {"total_tokens": 5}},
    ]

    async def parts():
        for event in events:
            yield f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()

    lines = answered(StreamingResponse(parts(), media_type="text/event-stream")).decode().split("\n\n")
    found = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert found == [events[0], events[1] | {"lossy_stats": STATS.to_dict()}]


def test_the_last_event_of_responses_has_it_in_the_response():
    whole = 'event: a\ndata: {"type":"a"}\n\nevent: b\ndata: {"type":"b","response":{"usage":{}}}\n\n'
    stream = StreamingResponse(_once(whole.encode()), media_type="text/event-stream")
    first, last, rest = answered(stream).decode().split("\n\n")
    assert first == 'event: a\ndata: {"type":"a"}'
    head, _, data = last.partition("data: ")
    assert head == "event: b\n"
    assert json.loads(data)["response"] == {"usage": {}, "lossy_stats": STATS.to_dict()}
    assert rest == ""
