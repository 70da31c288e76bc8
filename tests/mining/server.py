"""An OpenAI-compatible server of completions on loopback, answered by a real ``generate()``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


class CompletionServer(ThreadingHTTPServer):
    """Serves one model.

    Parameters
    ----------
    model, tokenizer
        What answers.
    trouble
        Called with the number of each request; what it returns is sent instead of a completion, unless it is None:
        a status, or a body.
    """

    daemon_threads = True

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, trouble: Callable[[int], int | bytes | None]
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model
        self.tokenizer = tokenizer
        self.trouble = trouble
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.turn = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        with self.turn:
            inputs = self.tokenizer(request["prompt"], return_tensors="pt")
            output = self.model.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
                do_sample=False, max_new_tokens=request["max_tokens"], pad_token_id=0,
            )  # fmt: skip
        new = output[0, inputs["input_ids"].shape[1] :].tolist()
        ended = new[-1] in torch.as_tensor(self.model.generation_config.eos_token_id).flatten().tolist()
        whole = output[0].tolist()[: -1 if ended else None]
        texts = [self.tokenizer.decode(ids) for ids in (inputs["input_ids"][0].tolist(), whole)]
        text = texts[1].removeprefix(texts[0])
        return {"choices": [{"index": 0, "text": text, "finish_reason": "stop" if ended else "length"}]}


class _Handler(BaseHTTPRequestHandler):
    server: CompletionServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({**request, "path": self.path})
        self.server.headers.append({name.title(): value for name, value in self.headers.items()})
        trouble = self.server.trouble(len(self.server.requests) - 1)
        status, body = 200, trouble
        if trouble is None:
            body = json.dumps(self.server.complete(request)).encode()
        elif isinstance(trouble, int):
            status, body = trouble, b"no such luck"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Retry-After-Ms", "10")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(
    model, tokenizer, trouble: Callable[[int], int | bytes | None] = lambda n: None
) -> Iterator[CompletionServer]:
    """Serve a model inside the block."""
    server = CompletionServer(model, tokenizer, trouble)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
