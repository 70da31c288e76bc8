"""Positions that a model has, and frequencies that change with them."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor, nn
from transformers import PreTrainedModel

from .models import forward_accepts


@dataclass(frozen=True)
class FrequencySwitch:
    """Where a model's rotary frequencies begin to depend on a forward's last position.

    LongRoPE changes them once, after ``at`` columns of text, for all tokens of a forward. Dynamic NTK changes them with
    every further token, so no forward over a draft is then that of plain decoding.
    """

    at: int
    with_every_token: bool

    def room(self, width: int) -> int:
        """Return how many drafted tokens may follow ``width`` columns of text in one forward."""
        if width <= self.at:
            return self.at - width
        return 0 if self.with_every_token else sys.maxsize


def frequency_switch(
    model: PreTrainedModel, positions: Tensor | None, prompt: int, rows: int, longest: int
) -> FrequencySwitch | None:
    """Return where frequencies change in texts of up to ``longest`` columns; None if they don't.

    ``positions`` ``(…, L)`` are those of prompts of ``prompt`` columns; they need not begin with 0. A batch that gets
    that far drafts nothing: its longest row chooses the frequencies of all rows, so they have to grow together.
    """
    found = switches_of(model)
    if not found:
        return None
    ahead = positions_ahead(positions, prompt)
    first = min(found, key=lambda x: (x.at, not x.with_every_token))
    if longest + ahead <= first.at:
        return None
    return FrequencySwitch(first.at - ahead, first.with_every_token) if rows == 1 else FrequencySwitch(-1, True)


def positions_ahead(positions: Tensor | None, prompt: int) -> int:
    """Return how much higher the positions ``(…, L)`` of prompts are than their ``prompt`` columns."""
    return 0 if positions is None else int(positions[..., -1].max()) + 1 - prompt


def switches_of(model: PreTrainedModel) -> list[FrequencySwitch]:
    """Return where a model's frequencies change; if anywhere, its forwards look at positions on the host."""
    config = model.config.get_text_config(decoder=True)
    given = getattr(config, "rope_parameters", None) or {}
    found = []
    for own in (given, *given.values()):
        kind = own.get("rope_type", "") if isinstance(own, dict) else ""
        if "dynamic" in kind:
            found.append(FrequencySwitch(config.max_position_embeddings, True))
        elif kind == "longrope":
            at = own.get("original_max_position_embeddings") or config.original_max_position_embeddings
            found.append(FrequencySwitch(at, False))
    return found


_TABLES = ("wpe", "positions_embed", "embed_positions", "position_embeddings", "position_embedding", "pos_encoding")
_OF_IMAGES = "vision"  # some decoders hold the model that looks at images, with positions of its own
_tables_of: weakref.WeakKeyDictionary[nn.Module, list[str]] = weakref.WeakKeyDictionary()


def learned_positions(model: PreTrainedModel) -> int | None:
    """Return how many positions a model's decoder has a table of; None where positions need none."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    if decoder not in _tables_of:  # a walk over all parts of a large model takes milliseconds
        names = dict((*decoder.named_modules(), *decoder.named_buffers()))
        _tables_of[decoder] = [x for x in names if x.rpartition(".")[2] in _TABLES and _OF_IMAGES not in x]
    sizes = []
    for name in _tables_of[decoder]:
        table = attrgetter(name)(decoder)
        if isinstance(table, Tensor):
            sizes.append(len(table))
        elif isinstance(table, nn.Embedding):  # RoBERTa and its kind may count from behind the position of padding
            before = getattr(table, "offset", 0) if table.padding_idx is None else table.padding_idx + 1
            sizes.append(table.num_embeddings - before)
    return min(sizes, default=None)


def counts_otherwise(model: PreTrainedModel) -> bool:
    """Tell whether a model that is given no positions counts otherwise than ``generate()`` lets it count.

    Some go on from those of their last call, as its images shifted them: whoever shares such a model, as a target may
    with its draft, has to say where the text is. RoBERTa and its kind begin behind the position of padding.
    """
    base = model.base_model
    kept = hasattr(model, "rope_deltas") or hasattr(base, "rope_deltas")
    behind_padding = hasattr(getattr(base, "embeddings", None), "padding_idx")
    return (kept or behind_padding) and forward_accepts(model, "position_ids")
