"""A client of OpenAI-compatible completions: text in, text out."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from ..errors import LossyError, LossyValueError

# Answers of a server that may well say something else next time.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504}


class CompletionError(LossyError):
    """A server does not answer, or not with a completion."""


@dataclass(frozen=True)
class Completion:
    """What a server has added to a text.

    Attributes
    ----------
    text
        The addition.
    ended
        Whether the model ended it, and not the limit.
    """

    text: str
    ended: bool


@dataclass(eq=False)
class Completions:
    """Greedy completions by a model behind an API.

    Parameters
    ----------
    url
        Where the API begins, e.g. ``http://localhost:8000/v1``; ``/completions`` is added.
    model
        The model's name there.
    timeout
        Seconds to wait for one completion.
    tries
        How often a request is sent before its failure counts; between two tries the pause doubles.
    pause
        Seconds before the second try.

    Raises
    ------
    LossyValueError
        When ``url`` is not one.
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

        A bearer token is taken from the environment variable ``OPENAI_API_KEY``, if there is one.

        Raises
        ------
        CompletionError
            When the server refuses, or still gives no completion after several tries.
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
