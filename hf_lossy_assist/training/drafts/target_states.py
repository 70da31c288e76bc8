"""States of a target's layers at every token of its texts, computed once and stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ...drafting.eagle3_drafter import LayerStates
from ...store.folder import write_whole
from .texts import Text, TextStore

LAST = "last"


class TargetStates:
    """The target's states at the tokens of texts, in bfloat16, stored beside the texts: one shard for each batch.

    ``layers`` index the target's ``hidden_states``; the state that enters the LM head is stored too. A forward has at
    most ``batch_tokens`` tokens.
    """

    def __init__(
        self, store: TextStore, target: PreTrainedModel, layers: Sequence[int], batch_tokens: int = 8192
    ) -> None:
        self.store, self.target, self.batch_tokens = store, target, batch_tokens
        self.layers = tuple(layers)
        self._names = [*map(str, self.layers), LAST]

    def keep(self, budget: int, process: int = 0, processes: int = 1) -> None:
        """Write the states of as many batches as fit into ``budget`` bytes; processes share the work."""
        token_bytes = 2 * self.target.config.get_text_config(decoder=True).hidden_size * len(self._names)
        for turn, batch in enumerate(self.store.batches()):
            texts = self.store.read(batch)
            total = sum(len(text.ids) for text in texts)
            budget -= total * token_bytes
            if budget < 0:
                return
            if texts and turn % processes == process and self._kept(batch, 0, total) is None:
                computed = self._compute(texts)
                flat = {name: torch.cat([states[name] for states in computed]) for name in self._names}
                write_whole(self._path(batch), save(flat))

    def of(self, texts: Sequence[Text]) -> list[tuple[Tensor, Tensor]]:
        """Return the layers' states ``(L, k·d)`` and the last one ``(L, d)`` of each text, read or computed."""
        found = [self._kept(text.batch, text.start, len(text.ids)) for text in texts]
        computed = iter(self._compute([text for text, states in zip(texts, found, strict=True) if states is None]))
        whole = [next(computed) if states is None else states for states in found]
        return [(torch.cat([s[LAST][:, :0], *(s[n] for n in self._names[:-1])], dim=-1), s[LAST]) for s in whole]

    def _path(self, batch: int) -> Path:
        return self.store.folder / f"states-{batch:06d}.safetensors"

    def _kept(self, batch: int, start: int, length: int) -> dict[str, Tensor] | None:
        try:
            with safe_open(self._path(batch), "pt") as file:
                found = {name: file.get_slice(name)[start : start + length] for name in self._names}
        except (OSError, SafetensorError):
            return None
        return found if len(found[LAST]) == length else None

    @torch.inference_mode()
    def _compute(self, texts: Sequence[Text]) -> list[dict[str, Tensor]]:
        lengths = [len(text.ids) for text in texts]
        watch = LayerStates(self.target, self.layers)
        found: list[dict[str, Tensor]] = [{} for _ in texts]
        for rows in cut(lengths, self.batch_tokens):
            # On the right, no token sees the padding.
            ids = pad_sequence([torch.tensor(texts[i].ids) for i in rows], batch_first=True)
            with watch.watched():
                last = self.target.get_decoder()(input_ids=ids.to(self.target.device), use_cache=False)
                read = watch.take().chunk(len(self.layers), dim=-1) if self.layers else ()
            for name, states in zip(self._names, (*read, last.last_hidden_state), strict=True):
                for row, i in enumerate(rows):
                    found[i][name] = states[row, : lengths[i]].to("cpu", torch.bfloat16)
        return found


def cut(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Sort texts by length and cut them into batches of at most ``tokens`` tokens, padding included.

    >>> cut([5, 2, 3], tokens=6)
    [[1, 2], [0]]
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[i] > tokens:
            batches.append([])
        batches[-1].append(i)
    return batches
