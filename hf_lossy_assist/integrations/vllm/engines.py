"""Engines of vLLM that answer a comparison's prompts, each in a process of vLLM's own environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import torch

from ...compat.inputs import ending_tokens
from ...errors import LossyUnsupportedError, LossyValueError
from ...evaluation.modes import DecodingMode
from ...evaluation.requests import PromptBatch, Response
from ...models.quantised import dtype_of
from ...pairs import Pair

_LONGEST = 4096
"""Tokens of a text that engines reserve memory for."""


class Engine:
    """A process that answers with one configuration of vLLM; :meth:`close` ends it.

    Parameters
    ----------
    python
        The interpreter of an environment with vLLM and this package.
    settings
        Keyword arguments of ``vllm.LLM``.
    threads
        Threads that the engine computes with; None for vLLM's own choice.
    program
        What the interpreter runs.
    seconds
        An engine that has not answered for so long is stopped.
    """

    def __init__(
        self,
        python: Path,
        settings: Mapping[str, Any],
        threads: int | None = None,
        program: Sequence[str] = ("-m", "hf_lossy_assist.integrations.vllm.answering"),
        seconds: float = 1800.0,
    ) -> None:
        self._seconds = seconds
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - until close()
        own = {}
        if threads is not None:
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
            own = {"VLLM_CPU_OMP_THREADS_BIND": cores, "OMP_NUM_THREADS": str(threads)}
        defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
        self._process = subprocess.Popen(
            [str(python), *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**defaults, **os.environ, **own},
        )  # fmt: skip
        self.ask(settings)

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line, and return the answer's."""
        watch = threading.Timer(self._seconds, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if not line:
            self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            last = "\n".join(self._errors.read().decode(errors="replace").splitlines()[-12:])
            raise LossyUnsupportedError(
                f"vLLM's process ended, or was stopped after {self._seconds:.0f} seconds without an answer. It wrote "
                f"last:\n{last}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise LossyValueError(reply["error"])
        return reply

    def close(self) -> None:
        try:
            self._process.communicate(timeout=30)  # its input ends
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()


def vllm_engines(wanted: bool, python: Path | None, threads: int | None) -> VllmEngines | None:
    """Return engines for a command that names vLLM, or None for another."""
    if wanted != (python is not None):
        raise LossyValueError(
            f"`--vllm-python` is {python}; an engine vllm needs the interpreter of an environment with vLLM, and only "
            "that engine reads it"
        )
    return None if python is None else VllmEngines(python, threads)


@dataclass(eq=False)
class VllmEngines:
    """The engines of a comparison, each started when a mode first needs it; a ``with`` block ends them.

    Parameters
    ----------
    python
        The interpreter of an environment with vLLM and this package.
    threads
        Threads that each engine computes with.
    """

    name = "vllm"

    python: Path
    threads: int | None = None
    _started: dict[str, Engine] = field(default_factory=dict)
    _files: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)

    def __enter__(self) -> VllmEngines:
        return self

    def __exit__(self, *error: object) -> None:
        for engine in self._started.values():
            engine.close()
        self._started.clear()
        self._files.cleanup()

    def modes(self, modes: Iterable[DecodingMode]) -> list[DecodingMode]:
        """Return the modes of vLLM that correspond to modes of this process.

        Transformers' assisted generation becomes vLLM's own lossless speculative decoding.
        """
        found = []
        for mode in modes:
            if not vllm_has(mode):
                raise LossyValueError(
                    f"`--modes` has {mode.label!r}, which can't run in vLLM; name a number of drafted tokens after @, "
                    "and leave out the draft alone, and folders with a certificate: vLLM runs one by its own "
                    "`--additional-config`"
                )
            own = "its own " if mode.rule is None and mode.gamma is not None else ""
            label = f"vLLM: {own}{mode.label.replace('stock', 'lossless')}"
            found.append(replace(mode, label=label, engine=self))
        return found

    def of(self, pair: Pair, mode: DecodingMode) -> Engine:
        """Return the engine of a mode, started if it is not there yet."""
        settings, files = engine_settings(pair, mode), Path(self._files.name)
        if mode.gamma is not None and (dtype := dtype_of(pair.draft)) is not None:
            raise LossyUnsupportedError(
                f"`draft_dtype` {dtype!r} rounds the draft of this process, but vLLM reads its own from a folder; "
                "leave it out, or name a folder as `assistant` that llm-compressor has written"
            )
        known = pair.rule_heads
        if heads := [rule for rule in mode.rules if rule in known]:
            for rule in heads:
                known[rule].save_pretrained(files / rule)
            settings["additional_config"]["lossy"]["head"] = {rule: str(files / rule) for rule in heads}
        key = json.dumps(settings, sort_keys=True)
        if key not in self._started:
            self._started[key] = Engine(self.python, settings, self.threads)
        return self._started[key]

    def respond(self, pair: Pair, mode: DecodingMode, batch: PromptBatch, max_new_tokens: int) -> Response:
        """Answer a batch in a mode of :meth:`modes`."""
        reply = self.of(pair, mode).ask(request_of(pair, mode, batch, max_new_tokens))
        rows = [torch.tensor(row, dtype=torch.long) for row in reply["tokens"]]
        work = [(rounds, kept, 0) for rounds, kept, _ in reply["work"]]
        return Response(rows, reply["seconds"], work, [drafted for *_, drafted in reply["work"]])


def vllm_has(mode: DecodingMode) -> bool:
    """Tell whether vLLM can decode so: not with the draft alone, drafts that end by themselves, or a certificate."""
    return mode.answers == "target" and mode.gamma != "auto" and "certificate" not in mode.settings


def engine_settings(pair: Pair, mode: DecodingMode) -> dict[str, Any]:
    """Return the keyword arguments of ``vllm.LLM`` for a mode."""
    positions = getattr(pair.target.config.get_text_config(decoder=True), "max_position_embeddings", _LONGEST)
    settings: dict[str, Any] = {
        "model": pair.target.name_or_path, "dtype": str(pair.target.dtype).removeprefix("torch."),
        "enforce_eager": True, "max_model_len": min(_LONGEST, positions), "enable_prefix_caching": False,
        "max_num_batched_tokens": 8192,  # vLLM on CPUs can't read a prompt in pieces if its request has a seed
    }  # fmt: skip
    if mode.gamma is not None:
        settings["speculative_config"] = {
            "method": "draft_model", "model": pair.draft.name_or_path, "num_speculative_tokens": mode.gamma,
            "draft_sample_method": "greedy" if mode.temperature is None else "probabilistic",
        }  # fmt: skip
        settings["per_request_spec_decode_metrics"] = "summary"
        # Requests without a rule are vLLM's own there too. In an engine of their own, they would differ by where the
        # process lies in memory, which makes more of a difference than the rules do.
        settings["additional_config"] = {"lossy": {}}
    return settings


def request_of(pair: Pair, mode: DecodingMode, batch: PromptBatch, max_new_tokens: int) -> dict[str, Any]:
    """Return the request for a batch, as :mod:`~hf_lossy_assist.integrations.vllm.answering` reads it."""
    ends = sorted(ending_tokens(pair.target.generation_config))
    parameters: dict[str, Any] = {
        "max_tokens": max_new_tokens, "temperature": mode.temperature or 0.0, "top_p": mode.top_p, "seed": batch.seed,
        "stop_token_ids": ends, "detokenize": False,
    }  # fmt: skip
    if batch.ending:
        parameters |= {"stop": list(batch.ending.strings), "detokenize": True, "include_stop_str_in_output": True}
    if mode.rule is not None:
        parameters["extra_args"] = {"lossy_mode": mode.rule, "lossy_config": {**mode.settings, "seed": batch.seed}}
    prompts = [row[mask.bool()].tolist() for row, mask in zip(batch.ids, batch.mask, strict=True)]
    return {"prompts": prompts, "parameters": parameters}
