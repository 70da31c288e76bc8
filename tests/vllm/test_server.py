"""The OpenAI server: every answer its own, bad fields answered with 400, counters, and a start after a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import BadRequestError, OpenAI

from hf_lossy_assist.pairs import BUNDLED
from tests.vllm.asking import LENGTH, RULES, prompts_of
from tests.vllm.conftest import BY_MODEL, ENVIRONMENT, HEADS

CLIENTS = 50
FLAGS = {
    "--model": str(BUNDLED / "target"),
    "--dtype": "float32",
    "--max-model-len": "256",
    "--max-num-seqs": "16",
    "--max-num-batched-tokens": "128",
    "--served-model-name": "pair",
    "--speculative-config": json.dumps(BY_MODEL),
}


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) != 0


class Server:
    def __init__(self, **lossy) -> None:
        # Below the ports that connections are given, since the server takes long to bind its own.
        self.port = next(port for port in range(20_000 + os.getpid() % 9_000, 32_000) if _is_free(port))
        flags = {**FLAGS, "--port": str(self.port), "--additional-config": json.dumps({"lossy": lossy})}
        # What `vllm serve` runs; that command looks for a package of another name than that of the build for CPUs.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe would fill, and stop the server)
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", *(x for flag in flags.items() for x in flag)],
            env={**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        self.client = OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=120)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode()

    def wait(self) -> Server:
        for _ in range(960):  # eight minutes: a busy machine starts slowly, and a dead server is seen at once
            if self.process.poll() is not None:
                self.log.seek(0)
                raise RuntimeError(self.log.read())
            try:
                self.get("/health")
                return self
            except OSError:
                time.sleep(0.5)
        raise TimeoutError

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, prompt: list[int], mode=None, config=None, **more):
        asked = {} if mode is None else {"lossy_mode": json.dumps(mode) if not isinstance(mode, str) else mode}
        asked |= {} if config is None else {"lossy_config": json.dumps(config)}
        body = {"vllm_xargs": asked} if asked else {}
        return self.client.completions.create(
            model="pair", prompt=prompt, temperature=0, max_tokens=LENGTH, extra_body=body, **more
        )


@pytest.fixture(scope="module")
def server():
    server = Server(**HEADS["lossy"]).wait()
    yield server
    server.kill()


def asked_by(pair, clients: int) -> list[tuple]:
    prompts = prompts_of(pair, clients)
    return [(prompt, *RULES[i % len(RULES)]) for i, prompt in enumerate(prompts)]


def test_every_client_gets_its_own_answer_from_a_server_that_was_killed_before(server, pair):
    asked = asked_by(pair, CLIENTS)
    alone = [server.ask(*each).choices[0].text for each in asked[:12]]
    with ThreadPoolExecutor(CLIENTS) as clients:
        together = list(clients.map(lambda each: server.ask(*each), asked))
    assert [x.choices[0].text for x in together[:12]] == alone
    assert len(together) == CLIENTS
    assert all(x.usage.prompt_tokens == len(each[0]) for x, each in zip(together, asked, strict=True))
    assert all(x.choices[0].finish_reason in ("stop", "length") for x in together)


def test_streams_end_whole(server, pair):
    prompt, mode, config = asked_by(pair, 1)[0]
    parts = [x.choices[0].text for x in server.ask(prompt, mode, config, stream=True)]
    assert "".join(parts) == server.ask(prompt, mode, config).choices[0].text


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"lossy_mode": "typcal"}, "lossy_mode"),
        ({"lossy_mode": "typical", "lossy_config": "{"}, "lossy_config"),
        ({"lossy_mode": "typical", "lossy_config": 3}, "lossy_config"),
    ],
    ids=str,
)
def test_a_bad_field_is_answered_with_400_and_its_name(server, pair, fields: dict, name: str):
    with pytest.raises(BadRequestError, match=name) as error:
        server.client.completions.create(model="pair", prompt="1", max_tokens=4, extra_body={"vllm_xargs": fields})
    assert error.value.status_code == 400


def test_a_server_that_was_killed_starts_again_with_the_same_texts(server, pair):
    asked = asked_by(pair, 3)
    before = [server.ask(*each).choices[0].text for each in asked]
    with ThreadPoolExecutor(3) as clients:
        cut = [clients.submit(server.ask, *each, stream=False) for each in asked]
        server.kill()
        assert all(each.exception(timeout=60) is not None or each.result().choices for each in cut)
    server.__init__(**HEADS["lossy"])
    server.wait()
    assert [server.ask(*each).choices[0].text for each in asked] == before
