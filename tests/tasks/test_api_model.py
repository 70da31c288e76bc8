"""A model behind an API: completions of a real HTTP server, and the key that is sent."""

from __future__ import annotations

import json
import socket

import pytest

from hf_lossy_assist import LossyUnsupportedError, LossyValueError, errors
from hf_lossy_assist.errors import LossyServiceError
from hf_lossy_assist.tasks.api_model import ApiModel
from tests.openai_server import fails, late, openai_server, sends

FINE = sends(json.dumps({"choices": [{"text": "fine", "finish_reason": "stop"}]}).encode())


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
    server.replies = [fails(500), fails(429), late(1.0), fails(503), fails(408), FINE]
    assert ApiModel(server.url, "m", timeout=0.2).complete("Once", 3) == ("fine", True)
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
        ApiModel(nowhere, "m", timeout=1.0, attempts=2).complete("Once", 3)


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_an_error_at_once(server, status):
    server.replies = [fails(status, "no such model")]
    with pytest.raises(LossyServiceError, match=rf"'m' .*{status}.*no such model.* OPENAI_API_KEY"):
        ApiModel(server.url, "m").complete("Once", 3)
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"[1]", b"{}", b'{"choices": []}'])
def test_nonsense_is_an_error(server, body):
    server.replies = [sends(body)]
    with pytest.raises(LossyServiceError, match=r"'m' at http.* gave no completion; check its address and name"):
        ApiModel(server.url, "m").complete("Once", 3)


def test_strangers_get_no_token_of_hugging_face(server, monkeypatch):
    server.replies = [FINE]
    ApiModel(server.url, "m").complete("Once", 3)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    ApiModel(server.url, "m").complete("Once", 3)
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer none", "Bearer sk-mine"]


def test_without_the_extra_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(LossyUnsupportedError, match=r"openai.*hf-lossy-assist\[api\]"):
        ApiModel("http://localhost/v1", "m")


@pytest.mark.parametrize("named", ["timeout", "attempts"])
def test_a_model_that_can_t_be_is_refused_at_once(named):
    with pytest.raises(LossyValueError, match=f"`{named}`"):
        ApiModel("http://localhost/v1", "m", **{named: 0})
