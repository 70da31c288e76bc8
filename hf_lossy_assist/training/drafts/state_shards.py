"""What the target thinks of its texts: states of some of its layers at every token, computed once and kept on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel

from ...drafting.eagle3_drafter import LayerStates
from ...mining.files import write_whole
from .text_writing import Text

LAST = "last"


class StateShards:
    """States of the target at the tokens of texts, in bfloat16.

    Parameters
    ----------
    folder
        Where they are kept, a shard for each batch of texts.
    target
        The target.
    layers
        The states that are wanted besides the one that enters the LM head, as the target numbers its
        ``hidden_states``.
    budget
        Bytes that the folder may take; what does not fit is computed whenever it is wanted.
    batch_tokens
        Tokens in a forward.
    """

    def __init__(
        self, folder: Path, target: PreTrainedModel, layers: Sequence[int], budget: int, batch_tokens: int = 8192
    ) -> None:
        self.folder, self.target = folder, target
        self.layers = tuple(layers)
        self.budget, self.batch_tokens = budget, batch_tokens

    def of(self, batch: int, texts: Sequence[Text]) -> list[tuple[Tensor, Tensor]]:
        """Return for each text of a batch ``(L, k·d)`` the layers' states and ``(L, d)`` the last one."""
        path = self.folder / f"states-{batch:06d}.safetensors"
        total = sum(len(text.ids) for text in texts)
        found = self._stored(path, total)
        if found is None:
            found = self._flat(texts)
            size = sum(states.numel() * states.element_size() for states in found.values())
            used = sum(file.stat().st_size for file in self.folder.glob("states-*.safetensors") if file != path)
            if used + size <= self.budget:
                self.folder.mkdir(parents=True, exist_ok=True)
                # Another process may be writing the same.
                own = path.with_name(f"{path.name}.{os.getpid()}")
                write_whole(own, save(found))
                own.replace(path)
        return self._split(found, texts)

    def compute(self, texts: Sequence[Text]) -> list[tuple[Tensor, Tensor]]:
        """Return the same for any texts, from forwards over several at once."""
        return self._split(self._flat(texts), texts)

    def _split(self, flat: dict[str, Tensor], texts: Sequence[Text]) -> list[tuple[Tensor, Tensor]]:
        lengths = [len(text.ids) for text in texts]
        read = [flat[str(layer)] for layer in self.layers]
        read = torch.cat(read, dim=-1) if read else flat[LAST][:, :0]
        return list(zip(read.split(lengths), flat[LAST].split(lengths), strict=True))

    def _stored(self, path: Path, total: int) -> dict[str, Tensor] | None:
        """Return what a shard holds, or None where there is none that will do."""
        wanted = [LAST, *map(str, self.layers)]
        try:
            with safe_open(path, "pt") as file:
                if not set(wanted) <= set(file.keys()):
                    return None
                found = {name: file.get_tensor(name) for name in wanted}
        except (OSError, SafetensorError):
            return None
        return found if all(len(states) == total for states in found.values()) else None

    @torch.inference_mode()
    def _flat(self, texts: Sequence[Text]) -> dict[str, Tensor]:
        """Return the states of all texts, one after the other, by their names in a shard."""
        device = self.target.device
        watch = LayerStates(self.target, self.layers)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
        pieces: dict[int, tuple[Tensor, ...]] = {}
        for rows in cut(by_length, [len(text.ids) for text in texts], self.batch_tokens):
            # Padding is on the right, where no token sees it.
            width = max(len(texts[i].ids) for i in rows)
            ids = torch.tensor([[*texts[i].ids, *[0] * (width - len(texts[i].ids))] for i in rows], device=device)
            with watch.watched():
                last = self.target.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
                read = watch.take().chunk(len(self.layers), dim=-1) if self.layers else ()
            for row, i in enumerate(rows):
                length = len(texts[i].ids)
                pieces[i] = tuple(x[row, :length].to("cpu", torch.bfloat16) for x in (*read, last))
        names = [*map(str, self.layers), LAST]
        order = range(len(texts))
        return {name: torch.cat([pieces[i][k] for i in order]).clone() for k, name in enumerate(names)}


def cut(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Cut rows, the shorter ones first, into batches that have at most so many tokens, padding included."""
    batches: list[list[int]] = []
    for row in rows:
        if not batches or (len(batches[-1]) + 1) * lengths[row] > tokens:
            batches.append([])
        batches[-1].append(row)
    return batches
