"""transformers' server as examples/12_serve.py starts it: every answer is assisted, and no client changes the rule."""

from __future__ import annotations

import importlib.util
import json
import runpy
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_lossy_assist import collect, pairs
from tests.openai_server import transformers_server

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("fastapi") is None, reason="needs `pip install 'transformers[serving]'`"
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "12_serve.py"
BUNDLED = Path(pairs.__file__).parent / "arithmetic"
TOKENS = 16
HOSTILE = [
    {"lossy_mode": "judge", "lossy_head": str(BUNDLED / "judge")},
    {"lossy_mode": "judge", "lossy_head": "/etc"},
    {"lossy_mode": "judge", "lossy_head": {"judge": "org/name"}},
    {"lossy_head": "/etc"},
    {"lossy_mode": "topk", "lossy_config": {"stop_drafting": {"by": "head", "head": "/etc"}}},
    {"lossy_mode": "topk", "lossy_config": {"certificate": "/etc"}},
    {"lossy_mode": "dropmatch", "lossy_config": {"num_paths": 10**9}},
    {"lossy_mode": None},
    {"lossy_mode": "no such rule", "lossy_config": "k"},
]


@pytest.fixture(scope="module")
def post() -> Iterator[Callable[..., Any]]:
    """Ask the example's server on this machine for a completion, with these fields in the body."""
    target, direct = str(BUNDLED / "target"), urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with transformers_server(runpy.run_path(str(EXAMPLE))["serve"], target, str(BUNDLED / "draft")) as address:

        def post(**fields: Any) -> Any:
            body = json.dumps({"model": target, "prompt": "Question: Tom has 3 apples and", **fields}).encode()
            headers = {"Content-Type": "application/json"}
            return direct.open(urllib.request.Request(f"{address}/v1/completions", body, headers), timeout=120)

        yield post


def configured(**fields: Any) -> dict[str, Any]:
    fields = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None, **fields}
    return {"generation_config": json.dumps(fields)}


def test_no_client_chooses_a_rule_or_has_a_head_read(post: Callable[..., Any]):
    with collect() as stats:
        own = json.load(post(**configured()))["choices"]
        for fields in HOSTILE:
            assert json.load(post(**configured(**fields)))["choices"] == own, fields
    assert len(stats.calls) == len(HOSTILE) + 1
    assert len({(call.rounds, *call.accepted_by) for call in stats.calls}) == 1
    (rule,) = stats.calls[0].accepted_by
    assert rule not in [fields.get("lossy_mode") for fields in HOSTILE]
    assert 0 < stats.calls[0].rounds < TOKENS
    with pytest.raises(urllib.error.HTTPError, match="422"), collect() as stats:
        post(**configured(), **HOSTILE[0])
    assert not stats.calls


def test_a_stream_counts_every_token(post: Callable[..., Any]):
    text = json.load(post(**configured()))["choices"][0]["text"]
    events = [json.loads(line.removeprefix(b"data: ")) for line in post(**configured(), stream=True) if line.strip()]
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == text
    assert events[-1]["usage"]["completion_tokens"] == TOKENS
    assert choices[-1]["finish_reason"] == "length"
