"""A conversation with a chat model that keeps its cache from turn to turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import enabled
from ..compat import CACHE, has_recurrent_state, new_cache, rollback, tokens_in
from ..core.statistics import LossyStats
from ..core.texts import common_prefix
from ..errors import LossyValueError
from .rendering import ConsoleStreamer


def encode_conversation(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """Return the token ids of messages in the chat template, with the prompt for an answer."""
    if not tokenizer.chat_template:
        raise LossyValueError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; use a chat model, or continue a text "
            "by `lossy-assist generate` without `--chat`"
        )
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


class Conversation:
    """Messages, and the target's cache of them.

    The next turn reuses the cache for the tokens that both texts begin with, so answers equal those of ``generate()``
    on the whole conversation. ``system`` replaces the template's system prompt.
    """

    def __init__(self, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, system: str | None = None) -> None:
        self._target, self._tokenizer = target, tokenizer
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        self.messages = list(self._system)
        self._cache, self._read = None, []

    def answer(self, text: str, streamer: ConsoleStreamer, max_new_tokens: int, **keywords: Any) -> LossyStats | None:
        """Let the model answer a message; return the statistics, or None after Ctrl-C.

        The answer so far stays in the conversation then. ``keywords`` go to ``generate()``.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        ids = encode_conversation(self._tokenizer, asked)
        room = getattr(self._target.config.get_text_config(), "max_position_embeddings", len(ids) + 1) - len(ids)
        if room < 1:
            raise LossyValueError(
                f"the conversation has {len(ids)} tokens, {1 - room} more than the model can answer; "
                "/reset starts again"
            )
        # An interrupted call leaves the cache in an unknown state.
        cache, self._cache, self._read = self._kept(ids), None, []
        inputs = torch.tensor([ids], device=self._target.device)
        stats = None
        try:
            with enabled(self._target):
                output = self._target.generate(
                    input_ids=inputs,
                    attention_mask=torch.ones_like(inputs),
                    streamer=streamer,
                    max_new_tokens=min(max_new_tokens, room),
                    return_dict_in_generate=True,
                    **{CACHE: cache},
                    **keywords,
                )
        except KeyboardInterrupt:
            streamer.end()
        else:
            self._cache, self._read, stats = getattr(output, CACHE), output.sequences[0].tolist(), output.lossy_stats
        self.messages = [*asked, {"role": "assistant", "content": streamer.text}]
        return stats

    def _kept(self, ids: list[int]) -> Any:
        """Return the cache cut to the tokens in common with the last text, or a new cache."""
        seen = tokens_in({CACHE: self._cache})
        common = min(common_prefix(self._read, ids), len(ids) - 1)
        if not seen or (common < seen and has_recurrent_state(self._target)):
            return new_cache(self._target)
        rollback(self._cache, max(0, seen - common))
        return self._cache
