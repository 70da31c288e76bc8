"""A server process: a chat completion under a lossy rule, at once and streamed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import BadRequestError

from hf_lossy_assist import enabled, last_stats, pairs
from tests.integrations.serving.running import FIELDS, TOKENS, Server, running_server


@pytest.fixture(scope="module")
def server(make_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(make_folder(**FIELDS), tmp_path_factory.mktemp("log") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def pair() -> pairs.Pair:
    return pairs.load("arithmetic", dtype=torch.bfloat16)  # as the server loads what is stored so


@pytest.fixture(scope="module")
def prompt(pair: pairs.Pair) -> str:
    return pair.task.examples("test", 1)[0].prompt


def expected(pair: pairs.Pair, prompt: str, **fields: Any) -> tuple[str, Any]:
    """Return the text and the statistics of the same call here."""
    inputs = pair.tokenizer(prompt, return_tensors="pt")
    with enabled(pair.target):
        ids = pair.target.generate(
            **inputs,
            assistant_model=pair.draft,
            num_assistant_tokens=8,
            do_sample=False,
            max_new_tokens=TOKENS,
            **fields,
        )
    text = pair.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return text, last_stats(pair.target)


def test_answers_with_the_rule_of_the_model(server: Server, pair: pairs.Pair, prompt: str):
    answer = json.load(server.chat(prompt))
    fields = {name: value for name, value in FIELDS.items() if name != "lossy_assistant"}
    text, stats = expected(pair, prompt, **fields)
    assert answer["choices"][0]["message"]["content"] == text
    told = server.stats()
    assert told["rounds"] == stats.rounds < TOKENS
    assert told["accepted"] == stats.accepted
    assert told["accepted_lossy"] == stats.accepted_lossy
    assert told["accepted_by"] == {"topk": stats.accepted}
    assert not told["lossless"]
    assert told["tokens_per_round"] == pytest.approx(stats.tokens_per_round)
    log = server.log.read_text()
    assert f"{server.model} is assisted by " in log
    assert f"{server.model}: {TOKENS} tokens in " in log
    assert f"{stats.accepted_lossy} kept only by a lossy rule {stats.accepted_lossy_by}" in log


def test_streams(server: Server, prompt: str):
    text = json.load(server.chat(prompt))["choices"][0]["message"]["content"]
    response = server.chat(prompt, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix(b"data: ")) for line in response if line.startswith(b"data: ")]
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(deltas) == text
    assert sum(map(bool, deltas)) > 1
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == TOKENS


def test_a_request_may_bring_its_own_rule(server: Server, pair: pairs.Pair, prompt: str):
    own = {"lossy_mode": "typical", "lossy_config": {"epsilon": 0.2, "break_even": False}}
    request = json.dumps(own | {"num_assistant_tokens": 8})
    answer = json.load(server.chat(prompt, generation_config=request))
    text, stats = expected(pair, prompt, **own)
    assert answer["choices"][0]["message"]["content"] == text
    assert server.stats()["accepted_by"] == {"typical": stats.accepted}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lossy_mode": "judge", "lossy_head": "HEAD"}, "`lossy_head` of a request"),
        ({"lossy_mode": "judge", "lossy_head": {"judge": "HEAD"}}, "`lossy_head` of a request"),
        ({"lossy_mode": ["judge", "topk"], "lossy_head": ["HEAD"]}, "`lossy_head` of a request"),
        ({"lossy_mode": "judge", "lossy_head": "~nosuch/x"}, "`lossy_head` of a request"),
        ({"lossy_mode": "judge", "lossy_head": "org/name"}, "`lossy_head` of a request"),
        ({"lossy_mode": "judge", "lossy_head": "\ud800"}, "`generation_config` of a request"),
        ({"lossy_mode": "topk", "lossy_config": {"compile": True}}, "`compile` in a request's"),
        (
            {"lossy_mode": "topk", "lossy_config": {"stop_drafting": {"by": "head", "head": "HEAD"}}},
            "`lossy_config.stop_drafting.head` of a request",
        ),
    ],
)
def test_a_request_reads_no_folders_and_compiles_nothing(server: Server, prompt: str, fields: dict, message: str):
    head = str(Path(pairs.__file__).parent / "arithmetic" / "judge")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        server.chat(prompt, generation_config=json.dumps(fields).replace("HEAD", head))
    assert refusal.value.code == 400
    assert message in json.load(refusal.value)["error"]["message"]


def test_bad_settings_of_a_request_are_its_own_fault(server: Server, prompt: str):
    with pytest.raises(urllib.error.HTTPError) as refusal:
        server.chat(prompt, generation_config=json.dumps({"lossy_mode": "tpok"}))
    assert refusal.value.code == 400
    assert "did you mean 'topk'" in json.load(refusal.value)["error"]["message"]
    for stream in (False, True):
        with pytest.raises(BadRequestError, match="did you mean 'k'"):
            ask(server, prompt, {"lossy_mode": "topk", "lossy_config": {"K": 3}}, stream=stream)
    assert json.load(server.chat(prompt))["choices"]


def ask(server: Server, prompt: str, fields: dict, **more: Any) -> Any:
    """Ask as users of OpenAI's client do."""
    messages = [{"role": "user", "content": prompt}]
    return server.client.chat.completions.create(
        model=server.model, messages=messages, max_tokens=TOKENS, temperature=0, extra_body=fields, **more
    )


@pytest.mark.parametrize(
    "own",
    [
        {"lossy_mode": "typical", "lossy_config": {"epsilon": 0.2, "break_even": False}},
        {"lossy_mode": "topk", "lossy_config": {"k": 2, "break_even": False, "tree": {"depth": 4, "top_k": 3}}},
    ],
    ids=["chain", "tree"],
)
def test_an_openai_client_chooses_a_rule_and_reads_the_statistics(server: Server, pair: pairs.Pair, prompt: str, own):
    before = server.totals()
    text, stats = expected(pair, prompt, **own)
    answer = ask(server, prompt, own)
    assert answer.choices[0].message.content == text
    *parts, last = ask(server, prompt, own, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text
    assert not any(hasattr(part, "lossy_stats") for part in parts)
    for told in (answer.lossy_stats, last.lossy_stats):
        counted = ("tokens", "rounds", "drafted", "accepted", "accepted_lossy", "accepted_by")
        assert {name: told[name] for name in counted} == {name: stats.to_dict()[name] for name in counted}
    after = server.totals()
    assert after["requests"] == before["requests"] + 2
    assert after["total"]["drafted"] == before["total"]["drafted"] + 2 * stats.drafted
    total = f'lossy_assist_requests_total{{model="{server.model}"}} {after["requests"]:.1f}'
    assert total in server.open("/metrics").read().decode()
    response = server.client.responses.create(
        model=server.model, input=prompt, max_output_tokens=TOKENS, temperature=0, extra_body=own, stream=False
    )
    assert response.lossy_stats["rounds"] == stats.rounds


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_run(server: Server, prompt: str, stream: bool):
    """Whether the server is at work on it, or has yet to begin."""
    server.chat(prompt).close()
    before = server.totals()["requests"]
    with ThreadPoolExecutor(3) as pool:
        for left in [pool.submit(server.leave, prompt, stream=stream) for _ in range(3)]:
            left.result()
    assert json.load(server.chat(prompt))["usage"]["completion_tokens"] == TOKENS
    assert server.totals()["requests"] == before + 1, "a run that nobody waits for was finished"


CHAT, TEXT, RESPONSE = "chat/completions", "completions", "responses"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages"),
        (CHAT, {"messages": [{"role": "refused", "content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": -5}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "logit_bias": {"99999": 1}}, "logit_bias"),
        (TEXT, {}, "prompt"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": "x", "stop": []}, "stop"),
        (RESPONSE, {}, "input"),
        (RESPONSE, {"input": [3]}, "input"),
        (RESPONSE, {"input": [{"role": "user", "content": [3]}]}, "input"),
        (RESPONSE, {"input": "x", "max_output_tokens": 10**9}, "max_output_tokens"),
    ],
)
def test_malformed_fields_are_refused_by_name(server: Server, path: str, fields: dict, named: str, stream: bool):
    with pytest.raises(urllib.error.HTTPError) as refusal:
        server.open(f"/v1/{path}", {"model": server.model, "stream": stream} | fields)
    assert refusal.value.code == 400
    assert f"`{named}`" in json.load(refusal.value)["error"]["message"]


def test_nesting_is_no_fault_of_the_server(server: Server, prompt: str):
    def code(depth: int) -> int:
        try:
            return server.chat(prompt, tools=[{"a": json.loads("[" * depth + "]" * depth)}], max_tokens=1).status
        except urllib.error.HTTPError as refusal:
            return refusal.code

    assert {code(depth) for depth in range(200, 800, 50)} <= {200, 400}


def test_no_request_has_another_model_loaded(server: Server, tmp_path: Path):
    assert b"has to be" in server.open("/load_model", {"model": str(tmp_path)}).read()
    assert b"cached" in server.open("/load_model", {"model": server.model}).read()
