"""OpenAI's API on loopback: chats by the replies that a test has written down, completions by a real ``generate()``."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Reply = Callable[[dict[str, Any]], "tuple[int, bytes]"]
"""Gives the status and the body of the reply to a request."""


def says(text: str | None) -> Reply:
    """Reply with a chat completion."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return sends(json.dumps(body).encode())


def fails(status: int, text: str = "no such luck") -> Reply:
    return lambda request: (status, json.dumps({"error": text}).encode())


def sends(body: bytes) -> Reply:
    return lambda request: (200, body)


def late(seconds: float) -> Reply:
    """Reply when nobody waits any more."""
    return lambda request: (time.sleep(seconds), says("[[A=B]]")(request))[1]


def completes(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Reply:
    """Reply with a model's greedy completion."""
    turn = threading.Lock()

    def reply(request: dict[str, Any]) -> tuple[int, bytes]:
        inputs = tokenizer(request["prompt"], return_tensors="pt")
        with turn:
            output = model.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], do_sample=False,
                max_new_tokens=request["max_tokens"], pad_token_id=0,
            )  # fmt: skip
        ended = int(output[0, -1]) in torch.as_tensor(model.generation_config.eos_token_id).flatten().tolist()
        whole = output[0].tolist()[: -1 if ended else None]
        before, text = (tokenizer.decode(ids) for ids in (inputs["input_ids"][0].tolist(), whole))
        choice = {"index": 0, "text": text.removeprefix(before), "finish_reason": "stop" if ended else "length"}
        return 200, json.dumps({"choices": [choice]}).encode()

    return reply


class OpenAIServer:
    """Its replies, in this order (the last for ever), and the requests that it got, each with its path and headers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.replies: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def reply(self, request: dict[str, Any]) -> tuple[int, bytes]:
        self.requests.append(request)
        return (self.replies.pop(0) if len(self.replies) > 1 else self.replies[0])(request)


@contextmanager
def openai_server(*replies: Reply) -> Iterator[OpenAIServer]:
    """Run a server in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.headers.append({name.title(): value for name, value in self.headers.items()})
            status, content = server.reply({**request, "path": self.path})
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Retry-After-Ms", "10")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except BrokenPipeError:
                pass  # the client has hung up, as the test wants it

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.daemon_threads = True
        server = OpenAIServer(f"http://127.0.0.1:{httpd.server_address[1]}/v1")
        server.replies = list(replies)
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            httpd.shutdown()
            thread.join()


@contextmanager
def transformers_server(make: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[str]:
    """Run transformers' server, as ``make`` makes it, in a thread of this process; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = make(*arguments, device="cpu", host="127.0.0.1", port=port, non_blocking=True, **options)
    while not running.server.started:
        assert running._thread.is_alive()
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill_server()
