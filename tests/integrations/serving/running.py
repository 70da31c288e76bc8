"""A server process, and the folder of a pair as it finds it: one that names its assistant."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_lossy_assist import pairs

if TYPE_CHECKING:
    from openai import OpenAI

FIELDS = {"lossy_mode": "topk", "lossy_config": {"k": 2, "break_even": False}, "lossy_assistant": "../draft"}
JSON = {"Content-Type": "application/json"}
START_SECONDS = 120
TOKENS = 48


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    model: str
    log: Path

    def open(self, path: str, body: dict | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, JSON)
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)

    def chat(self, prompt: str, **more: Any) -> Any:
        messages = [{"role": "user", "content": prompt}]
        body = {"model": self.model, "messages": messages, "max_tokens": TOKENS, "temperature": 0} | more
        return self.open("/v1/chat/completions", body)

    def leave(self, prompt: str, **more: Any) -> None:
        """Ask for a long answer, and be gone while the server is at work on it."""
        fields = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 4000}
        endless = {"logit_bias": {"2": -100.0}, "temperature": 0}
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc)
        connection.request("POST", "/v1/chat/completions", json.dumps(fields | endless | more).encode(), JSON)
        time.sleep(0.5)
        connection.close()

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the last request."""
        return self.totals()["last"]

    def totals(self) -> dict[str, Any]:
        return json.load(self.open("/lossy_stats"))[self.model]

    @property
    def client(self) -> OpenAI:
        from openai import OpenAI  # which takes a second, in every process that collects tests

        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


@contextmanager
def running_server(target: Path, log: Path) -> Iterator[Server]:
    """Run a server process for the model in one folder inside the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "hf_lossy_assist", "serve", str(target), "--device", "cpu"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    running = Server(f"http://127.0.0.1:{port}", str(target), log)
    try:
        _wait(running, process)
        yield running
    finally:
        # All that the process started has to go, too.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(server: Server, process: subprocess.Popen) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            server.open("/health").close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{server.log.read_text()}")


def served_folder(folder: Path, **fields: Any) -> Path:
    """Put the bundled pair into a folder, with fields in its generation configuration, and return the target's."""
    bundled = Path(pairs.__file__).parent / "arithmetic"
    for role in ("target", "draft"):
        shutil.copytree(bundled / role, folder / role)
    path = folder / "target" / "generation_config.json"
    config = json.loads(path.read_text())
    config.pop("_from_model_config", None)
    path.write_text(json.dumps(config | {"num_assistant_tokens": 8} | fields))
    template = (
        "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
        "{% if message['role'] == 'refused' %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
    )
    (folder / "target" / "chat_template.jinja").write_text(template)
    return folder / "target"
