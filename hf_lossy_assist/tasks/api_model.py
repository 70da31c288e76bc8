"""A model behind an OpenAI-compatible API, called by the package ``openai``, which retries."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from ..errors import LossyServiceError, need
from ..values import ONE_OR_MORE, POSITIVE, Checked

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True)
class ApiModel(Checked):
    """A model that completes texts behind an OpenAI-compatible API. Its key is in ``OPENAI_API_KEY``, if it needs one.

    Examples
    --------
    >>> ApiModel("http://localhost:8000/v1", "org/large").model
    'org/large'
    """

    base_url: str
    model: str  # its name on the server
    timeout: Annotated[float, POSITIVE] = 120.0  # seconds per reply
    # Attempts if a reply is late, the connection fails, or the server is busy or broken.
    attempts: Annotated[int, ONE_OR_MORE] = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        need("api", "a model behind an API")

    @cached_property
    def client(self) -> OpenAI:
        """The client, made when it is first needed."""
        from openai import OpenAI

        key = os.environ.get("OPENAI_API_KEY") or "none"
        return OpenAI(base_url=self.base_url, api_key=key, timeout=self.timeout, max_retries=self.attempts - 1)

    def complete(self, prompt: str, max_tokens: int) -> tuple[str, bool]:
        """Return the greedy continuation of a text, and whether the model ended it before the limit.

        Raises
        ------
        LossyServiceError
            After the last attempt, or at once if a retry would not help.
        """
        from openai import APIError

        where, asked = f"{self.model!r} at {self.base_url}", {"prompt": prompt, "max_tokens": max_tokens}
        try:
            choice = self.client.completions.create(model=self.model, temperature=0, **asked).choices[0]
            return choice.text, choice.finish_reason == "stop"
        except APIError as error:
            reply = getattr(error, "response", None)
            reason = (
                repr(error.__cause__ or error) if reply is None else f"{reply.status_code}: {reply.text.strip():.300}"
            )
            raise LossyServiceError(
                f"{where} gave no reply in at most {self.attempts} attempts ({reason}); check address, name and the "
                "key in the environment variable OPENAI_API_KEY, or try again later"
            ) from error
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise LossyServiceError(f"{where} gave no completion; check its address and name") from error
