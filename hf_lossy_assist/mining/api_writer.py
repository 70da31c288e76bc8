"""Completions of responses by a target behind an API: text in, text out (Garipov et al. 2025, appendix R).

The draft works on tokens and a server on text, and one text can be tokenised in several ways. A continuation is
tokenised together with all that stands before it; where that would change tokens that the search has settled, they stay
as they are, the continuation is tokenised alone, and the case is counted.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..errors import LossyError, LossyValueError
from ..tasks import Task
from .prompt_results import Ids, Prompt
from .writing import ResponseCost, ResponseLimits, Writer

# Statuses of failures that may pass by the next try.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504}


class CompletionError(LossyError):
    """A server does not answer, or not with a completion."""


@dataclass(frozen=True)
class Completion:
    """The text that a server has added; ``ended`` says whether the model ended it, and not the limit."""

    text: str
    ended: bool


@dataclass(eq=False)
class Completions:
    """A client for greedy completions by a model behind an OpenAI-compatible API.

    ``url`` is where the API begins, e.g. ``http://localhost:8000/v1``. A request is sent ``tries`` times before its
    failure counts, after ``pause`` seconds at first, and then twice as many each time.
    """

    url: str
    model: str
    timeout: float = 120.0
    tries: int = 5
    pause: float = 0.5

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise LossyValueError(f"`target_api` has to be a URL like http://localhost:8000/v1, but is {self.url!r}")
        self._closed = threading.Event()

    def close(self) -> None:
        """Try nothing again from now on."""
        self._closed.set()

    def complete(self, prompt: str, max_tokens: int) -> Completion:
        """Return what the model adds to ``prompt``, at most ``max_tokens`` of its tokens.

        A bearer token is taken from the environment variable ``OPENAI_API_KEY``, if there is one. Raises
        :class:`CompletionError` when the server refuses, or still gives no completion after several tries.
        """
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        pause = self.pause
        for tries_left in reversed(range(self.tries)):
            try:
                return _completion(self._post(body))
            except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
                # Whatever a server may answer instead of a completion; most of it passes.
                refused = isinstance(error, urllib.error.HTTPError) and error.code not in _PASSING
                if refused or not tries_left:
                    raise CompletionError(
                        f"`target_api` {self.url} gave no completion ({_reason(error)}); what was mined before is "
                        "kept, and the same command goes on from there"
                    ) from error
            if self._closed.wait(pause):
                break
            pause *= 2
        raise CompletionError(f"`target_api` {self.url} is not wanted any more")

    def _post(self, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/completions", data=json.dumps(body).encode(), headers=headers
        )
        with urllib.request.urlopen(request, timeout=self.timeout) as response:
            return json.loads(response.read())


def _completion(answer: Any) -> Completion:
    choice = answer["choices"][0]
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError(f"the text is {text!r}")
    return Completion(text, ended=choice.get("finish_reason") == "stop")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"status {error.code}: {error.read(300).decode(errors='replace').strip()}"
    return f"{type(error).__name__}: {error}"


# Seconds that a step waits for a completion; meanwhile the draft and the task are not served.
_PATIENCE = 0.1


@dataclass(frozen=True, eq=False)
class PromptText:
    """A prompt as the text that is sent and as the draft's tokens; turns responses from one into the other."""

    tokenizer: PreTrainedTokenizerBase
    text: str
    tokens: Ids

    @classmethod
    def of(cls, prompt: Prompt, task: Task, tokenizer: PreTrainedTokenizerBase) -> PromptText:
        """Return the text and the tokens of a prompt.

        A template may write a BOS that the server's tokenizer writes too; then it is left to the server.
        """
        text = task.render(prompt.example, tokenizer)
        bos = tokenizer.bos_token
        if bos and text.startswith(bos) and tokenizer(text)["input_ids"][:2] == [tokenizer.bos_token_id] * 2:
            text = text.removeprefix(bos)
        return cls(tokenizer, text, prompt.tokens)

    def write(self, prefix: Ids) -> str:
        """Return the text of prompt and ``prefix``; refuse a prefix that ends inside a character."""
        before, after = (
            self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            for ids in (self.tokens, (*self.tokens, *prefix))
        )
        if not after.startswith(before) or after.endswith("\ufffd"):
            raise LossyValueError("a token is only a part of a character, which can't be sent to a server as text")
        return self.text + after.removeprefix(before)

    def read(self, prefix: Ids, addition: str) -> tuple[Ids, bool]:
        """Return the response's tokens, and whether its whole text would be tokenised otherwise."""
        text = self.write(prefix) + addition
        before = (*self.tokens, *prefix)
        ids = tuple(self.tokenizer(text)["input_ids"])
        if ids[: len(before)] == before:
            return ids[len(self.tokens) :], False
        return (*prefix, *self.tokenizer(addition, add_special_tokens=False)["input_ids"]), bool(addition)


class ApiWriter(Writer):
    """A writer that sends texts to a server, ``slots`` requests at once.

    A text that the server's model has ended gets the tokenizer's EOS.
    """

    def __init__(
        self,
        completions: Completions,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        limits: ResponseLimits,
        slots: int,
    ) -> None:
        self._completions = completions
        self._task = task
        self._tokenizer = tokenizer
        self._limits = limits
        self._slots = slots
        self._spellings: dict[int, PromptText] = {}
        self._counts: dict[int, ResponseCost] = {}
        self._done: list[tuple[int, Ids]] = []
        self._open: dict[Future[Completion], tuple[int, Ids]] = {}
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="target-api")

    def begin(self, slot: int, prompt: Prompt) -> None:
        self._spellings[slot] = PromptText.of(prompt, self._task, self._tokenizer)
        self._counts[slot] = ResponseCost()

    def end(self, slot: int) -> ResponseCost:
        del self._spellings[slot]
        return self._counts.pop(slot)

    def submit(self, slot: int, prefix: Ids) -> None:
        if self._limits.over(prefix):
            self._done.append((slot, prefix))
            return
        text = self._spellings[slot].write(prefix)
        room = self._limits.max_new_tokens - len(prefix)
        self._open[self._pool.submit(self._completions.complete, text, room)] = (slot, prefix)

    def busy(self) -> bool:
        return bool(self._open or self._done)

    def step(self) -> list[tuple[int, Ids]]:
        done, self._done = self._done, []
        if self._open:
            finished, _ = wait(self._open, 0 if done else _PATIENCE, return_when=FIRST_COMPLETED)
            for future in finished:
                slot, prefix = self._open.pop(future)
                done.append((slot, self._response(slot, prefix, future.result())))
        return done

    def close(self) -> None:
        self._completions.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _response(self, slot: int, prefix: Ids, completion: Completion) -> Ids:
        spelling = self._spellings[slot]
        response, otherwise = spelling.read(prefix, completion.text)
        if completion.ended:
            response = (*response, self._tokenizer.eos_token_id)
        response = response[: self._limits.max_new_tokens]
        self._counts[slot].retokenised += otherwise
        self._counts[slot].target_tokens += len(spelling.tokens) + len(response) - 1
        return response
