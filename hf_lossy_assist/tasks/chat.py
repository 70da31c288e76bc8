"""A chat model behind an HTTP endpoint, asked until it answers."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import LossyServiceError, LossyValueError

if TYPE_CHECKING:
    from huggingface_hub import InferenceClient

_WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429})
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class ChatEndpoint:
    """A model that speaks OpenAI's chat completions, through ``huggingface_hub.InferenceClient``.

    Examples
    --------
    >>> ChatEndpoint(base_url="http://localhost:8000/v1", model="judge").describe()
    "'judge' at http://localhost:8000/v1"
    """

    # The endpoint, e.g. ``"http://localhost:8000/v1"``; without it, Hugging Face's inference providers.
    base_url: str | None = None
    model: str | None = None  # the model's name there
    # The environment variable with the key for ``base_url``. A Hugging Face token is sent to Hugging Face only.
    api_key_variable: str = "OPENAI_API_KEY"
    timeout: float = 120.0  # seconds to wait for one reply
    # How often to try where the reply is late, the connection fails, or the server says that it is busy or broken.
    attempts: int = 6
    backoff: float = 1.0  # seconds to pause after the first failure; the pause doubles each time, up to a minute
    # Passed on to the model; None leaves it to the server.
    max_tokens: int | None = 1024
    temperature: float | None = None

    def __post_init__(self) -> None:
        if not self.base_url and not self.model:
            raise LossyValueError("a chat model needs a `base_url`, a `model` or both, but neither is given")
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise LossyValueError(f"`base_url` has to start with http:// or https://, but is {self.base_url!r}")
        for name in ("timeout", "attempts"):
            if not getattr(self, name) > 0:
                raise LossyValueError(f"`{name}` has to be a number > 0, but is {getattr(self, name)!r}")

    def describe(self) -> str:
        """Return a few words that say which model this is."""
        return " at ".join(filter(None, [self.model and repr(self.model), self.base_url]))

    def ask(self, system: str, question: str) -> str | None:
        """Return the reply to one question, or None if what came back is no chat completion.

        Raises
        ------
        LossyServiceError
            If no reply came in all attempts, or at once where another one would not help (no such model, no key).
        """
        from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

        client = self._client
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        trouble: Exception | None = None
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(min(self.backoff * 2 ** (attempt - 1), _LONGEST_PAUSE))
            try:
                reply = client.chat_completion(
                    messages, model=self.model, max_tokens=self.max_tokens, temperature=self.temperature
                )
                return reply.choices[0].message.content
            except HfHubHTTPError as error:
                status = error.response.status_code
                if status < 500 and status not in _WORTH_ANOTHER_TRY:
                    reason = " ".join(str(error).split()).rstrip(".")
                    raise LossyServiceError(
                        f"{self.describe()} refuses ({status}): {reason}. {self._hint(status)}"
                    ) from error
                trouble = error
            except OfflineModeIsEnabled as error:
                raise LossyServiceError(
                    f"{self.describe()} was not asked, since huggingface_hub is in offline mode; unset `HF_HUB_OFFLINE`"
                ) from error
            except HTTPError as error:  # late, refused, cut off
                trouble = error
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                return None  # no JSON, or other JSON than the client can make a chat completion of
        raise LossyServiceError(
            f"{self.describe()} gave no reply in {self.attempts} attempts; the last one ended with "
            f"{type(trouble).__name__}: {' '.join(str(trouble).split())}"
        ) from trouble

    @cached_property
    def _client(self) -> InferenceClient:
        from huggingface_hub import InferenceClient, get_token

        if not self.base_url:
            if get_token() is None:
                raise LossyServiceError(f"{self.describe()} needs a Hugging Face token: log in with `hf auth login`")
            return InferenceClient(self.model, timeout=self.timeout)
        # Without a key of its own the client would send the user's Hugging Face token to a stranger.
        key = os.environ.get(self.api_key_variable) or "none"
        return InferenceClient(base_url=self.base_url, api_key=key, timeout=self.timeout)

    def _hint(self, status: int) -> str:
        if status not in (401, 403):
            return "Check `base_url` and `model`."
        if not self.base_url:
            return "Log in with `hf auth login`."
        state = "was sent" if os.environ.get(self.api_key_variable) else "is not set"
        return f"The key in the environment variable {self.api_key_variable} (`api_key_variable`) {state}."
