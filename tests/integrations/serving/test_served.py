"""What requests may ask for, and what their responses say, without a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from starlette.responses import JSONResponse, StreamingResponse
from transformers import GenerationConfig

from hf_lossy_assist import LossyValueError, pairs
from hf_lossy_assist.compat.serving import Endpoint
from hf_lossy_assist.core.statistics import LossyStats
from hf_lossy_assist.integrations.serving import RequestLimits, Settings
from hf_lossy_assist.integrations.serving.served import ServedRequests

JUDGE = str(Path(pairs.__file__).parent / "arithmetic" / "judge")
OWN = {"lossy_assistant": "org/draft"}
STOP = str(Path(pairs.__file__).parent / "arithmetic" / "verifier")
STATS = LossyStats(rounds=2, drafted=4, accepted=3, bonus=2)


def stopping(head: object) -> dict:
    return {"stop_drafting": {"by": "head", "head": head}}


def served(body: dict, settings: Settings, own: GenerationConfig, config: GenerationConfig, stats=None, response=None):
    """Take a request through everything but a server, and return the response that comes out of the middleware."""
    requests = ServedRequests(settings)
    text = SimpleNamespace(vocab_size=100)
    model = SimpleNamespace(generation_config=own, config=SimpleNamespace(get_text_config=lambda decoder: text))
    response = response or JSONResponse({})

    async def call_next(request):
        requests.check(body, Endpoint(()))
        requests.begin(model, torch.zeros(1, 3), config)
        if stats is not None:
            requests.record(config, stats)
        # As starlette hands a response to a middleware.
        parts = response.body_iterator if hasattr(response, "body_iterator") else _once(response.body)
        return SimpleNamespace(headers=response.headers, body_iterator=parts)

    async def run() -> bytes:
        found = await requests.answer(SimpleNamespace(receive=None), call_next)
        return b"".join([part async for part in found.body_iterator])

    return asyncio.run(run())


def configured(fields: dict, settings: Settings | None = None, *, own: dict | None = None, body: bool = True):
    """Return the configuration of a request with fields in its body, or else in its ``generation_config``."""
    own = GenerationConfig(**(OWN if own is None else own))
    config = GenerationConfig(**own.to_dict()) if body else GenerationConfig(**fields)
    asked = dict(fields) if body else {"generation_config": json.dumps(fields)}
    served(asked, settings or Settings(), own, config)
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
        (Settings(), {}, {"lossy_mode": ["topk", "fly"], "lossy_config": {"fly": {"window": 8}, "scope": "thinking"}}),
        (Settings(allowed_heads=(STOP,)), {}, {"lossy_mode": "topk", "lossy_config": stopping(STOP)}),
        (Settings(), {"lossy_config": stopping(STOP)}, {"lossy_mode": "topk", "lossy_config": stopping(STOP)}),
        (
            Settings(limits=RequestLimits(num_paths=64)),
            {},
            {"lossy_mode": "dropmatch", "lossy_config": {"num_paths": 64}},
        ),
    ],
)
def test_what_the_operator_allows_may_be_asked_for(settings: Settings, own: dict, fields: dict, body: bool):
    found = configured(fields, settings, own=OWN | own, body=body)
    assert {name: value for name, value in found.items() if value is not None} == fields


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lossy_mode": "judge", "lossy_head": JUDGE}, "`lossy_head` of a request has to be one that .*'org/head'"),
        ({"lossy_mode": "judge", "lossy_head": {"judge": JUDGE}}, "`lossy_head` of a request"),
        ({"lossy_mode": "topk", "lossy_config": {"compile": True}}, "`compile`"),
        ({"lossy_mode": "topk", "lossy_config": {"certificate": "."}}, "`certificate`"),
        ({"lossy_mode": "tpok"}, "did you mean 'topk'"),
        ({"lossy_mode": "topk", "lossy_config": {"K": 3}}, "did you mean 'k'"),
        ({"lossy_config": {"k": 3}}, "need a `lossy_mode`"),
        ({"lossy_mode": []}, "`lossy_mode` has to name at least one rule"),
        ({"lossy_mode": "topk", "lossy_config": "k=3"}, "`lossy_config` has to be a dict"),
        ({"lossy_mode": "topk", "lossy_config": {"inspect": True}}, "`lossy_config.inspect` can't be set"),
        ({"lossy_mode": ["topk"], "lossy_config": {"topk": {"new": 1}}}, "`lossy_config.topk.new` can't be set"),
        ({"lossy_mode": "topk", "lossy_config": {"tree": {"new": 1}}}, "`lossy_config.tree.new` can't be set"),
        ({"lossy_mode": "topk", "lossy_config": {"tree": 3}}, "tree.* has to be a dict"),
        ({"lossy_mode": "topk", "lossy_config": stopping("/etc")}, "`lossy_config.stop_drafting.head` of .*'/etc'"),
        ({"lossy_mode": "topk", "lossy_config": stopping("org/name")}, "`lossy_config.stop_drafting.head` of"),
        ({"lossy_mode": "topk", "lossy_config": stopping(3)}, "`lossy_config.stop_drafting.head` of a request .* 3"),
    ],
)
def test_what_nobody_allows_or_can_not_work_is_refused(fields: dict, message: str, body: bool):
    with pytest.raises(LossyValueError, match=message):
        configured(fields, Settings(allowed_heads=("org/head",)), body=body)


@pytest.mark.parametrize(
    ("config", "place", "limit"),
    [
        ({"num_paths": 33}, "num_paths", "num_paths"),
        ({"dropmatch": {"num_paths": 33}}, "dropmatch.num_paths", "num_paths"),
        ({"window": 65}, "window", "window"),
        ({"max_draft": 129}, "max_draft", "max_draft"),
        ({"tree": {"depth": 17}}, "tree.depth", "tree_depth"),
        ({"tree": {"top_k": 17}}, "tree.top_k", "tree_top_k"),
        ({"tree": {"nodes": 257}}, "tree.nodes", "tree_nodes"),
        ({"scope": {"start": "x" * 65, "end": "x"}}, "scope.start", "marker_length"),
        ({"scope": {"start": "x", "end": [1] * 65}}, "scope.end", "marker_length"),
    ],
)
def test_what_costs_is_bounded(config: dict, place: str, limit: str):
    most = getattr(RequestLimits(), limit)
    message = rf"`lossy_config.{place}` of a request has to be at most {most}, .* limit `{limit}`, but is {most + 1}$"
    with pytest.raises(LossyValueError, match=message):
        configured({"lossy_mode": "topk", "lossy_config": config})


def test_tokens_are_bounded_too():
    asked = GenerationConfig(max_new_tokens=1024)  # as the server writes where a request says nothing
    served({}, Settings(limits=RequestLimits(new_tokens=9)), GenerationConfig(**OWN), asked)
    assert asked.max_new_tokens == 9
    with pytest.raises(LossyValueError, match=r"prompt of a request has to be at most 2, .*`prompt_tokens`, but is 3"):
        served({}, Settings(limits=RequestLimits(prompt_tokens=2)), GenerationConfig(**OWN), asked)
    for body, config in (
        ({"logit_bias": {"100": 1}}, {}),
        ({}, {"eos_token_id": [5, 100]}),
        ({}, {"pad_token_id": 100}),
    ):
        with pytest.raises(LossyValueError, match="` of a request has to have tokens below 100, but has 100"):
            served(body, Settings(), GenerationConfig(**OWN), GenerationConfig(**config))
    served(
        {"logit_bias": {"99": 1}}, Settings(), GenerationConfig(pad_token_id=100), GenerationConfig(pad_token_id=100)
    )


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
    return served({}, Settings(), GenerationConfig(**OWN), GenerationConfig(), stats, response)


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
