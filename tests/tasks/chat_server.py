"""A chat model on loopback: it says what the test has written down for it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], "tuple[int, bytes]"]


def says(text: str | None) -> Reply:
    """Reply with a chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return lambda request: (200, json.dumps(body).encode())


def fails(status: int, text: str = "no") -> Reply:
    """Reply with an error."""
    return lambda request: (status, json.dumps({"error": text}).encode())


def sends(body: bytes) -> Reply:
    """Reply with whatever this is."""
    return lambda request: (200, body)


def late(seconds: float) -> Reply:
    """Reply when nobody waits any more."""

    def reply(request: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(seconds)
        return says("[[A=B]]")(request)

    return reply


@dataclass
class ChatServer:
    """What it will reply, in this order (the last for ever), and what it was asked."""

    url: str
    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def reply(self, request: dict[str, Any], key: str | None) -> tuple[int, bytes]:
        self.requests.append(request)
        self.keys.append(key)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply(request)


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """Run a server in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = self.path == "/v1/chat/completions"
            status, content = server.reply(body, self.headers["Authorization"]) if known else (404, b"{}")
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Retry-After-Ms", "10")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except BrokenPipeError:
                pass  # who asked has hung up, as the test wants it

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        server = ChatServer(f"http://127.0.0.1:{httpd.server_address[1]}/v1")
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            httpd.shutdown()
            thread.join()
