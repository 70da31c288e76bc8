"""A model behind an OpenAI-compatible API, called by the package ``openai``, which retries."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import LossyServiceError, LossyValueError, need
from ..values import ONE_OR_MORE, POSITIVE, Checked

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True)
class ApiModel(Checked):
    """A model that chats or completes texts behind an OpenAI-compatible API.

    Both methods raise :class:`LossyServiceError` after the last attempt, or at once if a retry would not help.

    Examples
    --------
    >>> ApiModel(base_url="http://localhost:8000/v1", model="judge").describe()
    "'judge' at http://localhost:8000/v1"
    """

    base_url: str | None = None  # Hugging Face's inference providers by default
    model: str | None = None  # the model's name on the server
    api_key_variable: str = "OPENAI_API_KEY"  # environment variable of the key for ``base_url``
    timeout: Annotated[float, POSITIVE] = 120.0  # seconds per reply
    # Attempts if a reply is late, the connection fails, or the server is busy or broken.
    attempts: Annotated[int, ONE_OR_MORE] = 6
    max_tokens: int | None = 1024  # of a chat's reply; None: the server's default
    temperature: float | None = None  # None: the server's default

    def __post_init__(self) -> None:
        super().__post_init__()
        need("api", "a model behind an API")
        if not self.base_url and not self.model:
            raise LossyValueError("a model behind an API needs a `base_url`, a `model` or both, but neither is given")
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise LossyValueError(f"`base_url` has to start with http:// or https://, but is {self.base_url!r}")

    def describe(self) -> str:
        """Return the model's name and its server's address, for errors."""
        return " at ".join(filter(None, [self.model and repr(self.model), self.base_url]))

    def ask(self, system: str, question: str) -> str | None:
        """Return the reply to one question, or None if the server sent no chat completion."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        given = {name: x for name in ("max_tokens", "temperature") if (x := getattr(self, name)) is not None}
        choice = self._choice(self.client.chat.completions, messages=messages, **given)
        text = getattr(getattr(choice, "message", None), "content", None)
        return text if isinstance(text, str) else None

    def complete(self, prompt: str, max_tokens: int) -> tuple[str, bool]:
        """Return the greedy continuation of a text, and whether the model ended it before the limit."""
        choice = self._choice(self.client.completions, prompt=prompt, max_tokens=max_tokens, temperature=0)
        text = getattr(choice, "text", None)
        if not isinstance(text, str):
            raise LossyServiceError(f"{self.describe()} gave no completion; check its address and name")
        return text, choice.finish_reason == "stop"

    @cached_property
    def client(self) -> OpenAI:
        """The client, made when it is first needed."""
        from huggingface_hub import get_token
        from openai import OpenAI

        # Only Hugging Face gets the user's Hugging Face token.
        key = (os.environ.get(self.api_key_variable) or "none") if self.base_url else get_token()
        if key is None:
            raise LossyServiceError(f"{self.describe()} needs a Hugging Face token: log in with `hf auth login`")
        url = self.base_url or "https://router.huggingface.co/v1"
        return OpenAI(base_url=url, api_key=key, timeout=self.timeout, max_retries=self.attempts - 1)

    def _choice(self, resource: Any, **body: Any) -> Any:
        from openai import APIError

        try:
            return resource.create(model=self.model or "default", **body).choices[0]
        except APIError as error:
            reply = getattr(error, "response", None)
            reason = (
                repr(error.__cause__ or error) if reply is None else f"{reply.status_code}: {reply.text.strip():.300}"
            )
            raise LossyServiceError(
                f"{self.describe()} gave no reply in at most {self.attempts} attempts ({reason}); check address, name "
                f"and the key in the environment variable {self.api_key_variable}, or try again later"
            ) from error
        except (AttributeError, IndexError, TypeError, ValueError):
            return None  # the reply is not a completion
