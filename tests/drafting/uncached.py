"""The scores of EAGLE-3 heads, computed without a cache."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding

from hf_lossy_assist.drafting.state_drafter import LayerStates


@torch.no_grad()
def eagle3_logits(target, head, text: torch.Tensor, drafted: torch.Tensor) -> torch.Tensor:
    """``(n, V_draft)`` logits of drafted tokens ``(n,)`` after a text ``(L,)``, without any cache that is kept."""
    states = LayerStates(target, head.config.layers_of(target))
    with states.watched():
        target(text[None, :-1], use_cache=False)
        read = states.pop()
    tokens = embedding(torch.cat([text, drafted])[None], head.embeddings(target))
    length, cache = len(text) - 1, head.new_cache()
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    out = head(tokens[:, 1 : length + 1], head.fuse(read), torch.arange(length)[None], causal, cache)[:, -1:]
    rows = [head.logits(out)]
    for step in range(len(drafted) - 1):
        at = length + step
        out = head(tokens[:, at + 1 : at + 2], out, torch.tensor([[at]]), None, cache)
        rows.append(head.logits(out))
    return torch.cat(rows, dim=1)[0]
