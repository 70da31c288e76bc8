"""A model behind an API: both of its methods against a real HTTP server, and the keys that it sends."""

from __future__ import annotations

import json
import socket

import huggingface_hub
import pytest

from hf_lossy_assist import LossyUnsupportedError, LossyValueError, errors
from hf_lossy_assist.errors import LossyServiceError
from hf_lossy_assist.tasks.api_model import ApiModel
from tests.openai_server import fails, late, openai_server, says, sends

CHAT, COMPLETION = says("fine"), sends(json.dumps({"choices": [{"text": "fine", "finish_reason": "stop"}]}).encode())
WAYS = {
    "chat": (lambda model: model.ask("Judge!", "Which?"), CHAT, "fine"),
    "completion": (lambda model: model.complete("Once", 3), COMPLETION, ("fine", True)),
}
both_ways = pytest.mark.parametrize(("ask", "reply", "answer"), WAYS.values(), ids=WAYS.keys())


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    """Nobody's keys."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def server():
    with openai_server() as server:
        yield server


def test_a_busy_broken_or_late_server_is_asked_again(server):
    server.replies = [fails(500), fails(429), late(1.0), fails(503), fails(408), CHAT]
    assert ApiModel(server.url, "m", timeout=0.2).ask("Judge!", "Which?") == "fine"
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("trouble", "message"),
    [(late(0.6), "ReadTimeout"), (fails(500, "out of memory"), "500.*out of memory"), (fails(529), "529")],
    ids=["timeout", "500", "529"],
)
def test_a_server_that_stays_away_is_an_error(server, trouble, message):
    server.replies = [trouble]
    with pytest.raises(LossyServiceError, match=rf"'m' at http.* gave no reply in at most 2 attempts \(.*{message}"):
        ApiModel(server.url, "m", timeout=0.2, attempts=2).complete("Once", 3)
    assert len(server.requests) == 2


def test_nobody_there_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    with pytest.raises(LossyServiceError, match=r"gave no reply in at most 2 attempts \(ConnectError"):
        ApiModel(nowhere, "m", timeout=1.0, attempts=2).ask("Judge!", "Which?")


@both_ways
@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_an_error_at_once(server, ask, reply, answer, status):
    server.replies = [fails(status, "no such model")]
    with pytest.raises(LossyServiceError, match=rf"'m' .*{status}.*no such model.* OPENAI_API_KEY"):
        ask(ApiModel(server.url, "m"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"[1]", b"{}", b'{"choices": []}', b'{"choices": [{"text": 3}]}'])
def test_nonsense_is_no_chat_and_an_error_as_a_completion(server, body):
    server.replies, model = [sends(body)], ApiModel(server.url, "m")
    assert model.ask("Judge!", "Which?") is None
    with pytest.raises(LossyServiceError, match=r"'m' at http.* gave no completion; check its address and name"):
        model.complete("Once", 3)
    assert len(server.requests) == 2


@both_ways
def test_only_the_named_key_is_sent(server, monkeypatch, ask, reply, answer):
    monkeypatch.setenv("MY_KEY", "sk-mine")
    server.replies = [reply]
    for model in (ApiModel(server.url, "m", api_key_variable="MY_KEY"), ApiModel(server.url, "m")):
        assert ask(model) == answer
    keys = [headers["Authorization"] for headers in server.headers]
    assert keys == ["Bearer sk-mine", "Bearer none"], "strangers get no token of Hugging Face"


def test_hugging_face_s_providers_get_its_token_and_need_one(monkeypatch):
    client = ApiModel(model="m").client
    assert (str(client.base_url), client.api_key) == ("https://router.huggingface.co/v1/", "hf_secret")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(LossyServiceError, match="'m' needs a Hugging Face token: log in"):
        ApiModel(model="m").ask("Judge!", "Which?")


def test_without_the_extra_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(LossyUnsupportedError, match=r"openai.*hf-lossy-assist\[api\]"):
        ApiModel(model="m")


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("base_url", {}),
        ("base_url", {"base_url": "localhost:8000"}),
        ("timeout", {"model": "m", "timeout": 0}),
        ("attempts", {"model": "m", "attempts": 0}),
    ],
)
def test_a_model_that_can_t_be_is_refused_at_once(named, options):
    with pytest.raises(LossyValueError, match=f"`{named}`"):
        ApiModel(**options)
