"""Train a DFlash head for the bundled target: ``python -m benchmarks.train_dflash --help``.

A recipe of its own, for a target of this size on one CPU core. For real targets, use speculators.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3Config

from benchmarks.bundled_pair.state_heads import HeadRecipe, LayerStates, answers, descend, layer_of, study
from benchmarks.bundled_pair.steps import Text
from hf_lossy_assist import DFlash, pairs


@dataclass(frozen=True)
class Recipe(HeadRecipe):
    """Blocks begin at random tokens of the answers."""

    own_layers: int = 2
    intermediate: int = 256
    block_size: int = 8
    written: int = 500
    batch: int = 12
    anchors: int = 32  # blocks in a text
    steps: int = 650
    cosine: int = 300
    decay: float = 0.85


def new_head(pair: pairs.Pair, recipe: Recipe) -> DFlash:
    """Return an untrained head."""
    torch.manual_seed(recipe.seed)
    config = pair.target.config
    bundled = DFlash.from_pretrained(pairs.hub_cards() / "arithmetic-dflash").config  # whose conventions it keeps
    head = DFlash(replace(
        bundled, layer=layer_of(Qwen3Config, config, recipe), draft_vocab_size=config.vocab_size,
        target_hidden_size=config.hidden_size, target_layers=recipe.layers, block_size=recipe.block_size,
        mask_token_id=pair.tokenizer.pad_token_id,
    ))  # fmt: skip
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
        head.norm.weight.copy_(0.3 * pair.target.model.norm.weight)  # untrained, it should hardly be sure of a token
    return head.float().train()


def scales_of(pair: pairs.Pair, recipe: Recipe, text: Text) -> Tensor:
    """Return what makes all entries of the states that are read alike in size.

    Adam's steps are equally long for every weight, so entries that are much larger than others would dominate. In
    training the states are scaled, and then the weights that read them.
    """
    states = LayerStates(pair.target, recipe.layers).of(pair.target, text[0])
    return states.square().mean(0).sqrt().clamp(min=1e-6).reciprocal()


def loss_of(
    head: DFlash, target, states: LayerStates, scales: Tensor, texts: list[Text], recipe: Recipe, draws: torch.Generator
) -> Tensor:
    """Return the loss of blocks after random tokens of the answers: -Σ p log q, a mean over positions.

    ``p`` is the target's distribution after the text as it is. Tokens further on in a block count less, because they
    are kept only together with those before (DFlash, arXiv 2602.06036).
    """
    ids = pad_sequence([text for text, _ in texts], batch_first=True)
    rows, length = ids.shape
    begin, end = torch.tensor([[start, len(text)] for text, start in texts]).T[..., None]
    with torch.no_grad(), states.watched():
        p = target(ids, use_cache=False).logits.float().softmax(-1)
        read = states.pop() * scales
    # A block begins with the newest token, which the target has written.
    anchors = begin + (torch.rand(rows, recipe.anchors, generator=draws) * (end - begin - 1)).long()
    block = torch.arange(recipe.block_size).repeat(recipe.anchors)
    number = torch.arange(recipe.anchors).repeat_interleave(recipe.block_size)
    places = anchors[:, number] + block  # (B, A·b)
    inside = places.clamp(max=length - 1)
    tokens = torch.where(block == 0, ids.gather(1, inside), head.config.mask_token_id)
    before = torch.arange(length) < anchors[:, number, None]
    own = (number[:, None] == number).expand(rows, -1, -1)
    mask = torch.cat([before, own], dim=-1)[:, None]
    cache = head.new_cache()
    head.remember(head.fuse(read), torch.arange(length)[None], cache)
    embeds = embedding(tokens, head.embeddings(target))
    output = head(embeds, places, dict.fromkeys(head.config.kinds, mask), cache)
    row, slot = ((block > 0) & (places < end)).nonzero().T
    logs = head.scores(output[row, slot], target.get_output_embeddings()).log_softmax(-1)
    weight = recipe.decay ** (block[slot] - 1)
    wanted = (p[row, places[row, slot] - 1] * logs).sum(-1)
    return -(weight * wanted).sum() / weight.sum()


def fit(pair: pairs.Pair, recipe: Recipe, folder: Path, **options: Any) -> DFlash:
    """Return the trained head; a run that was interrupted goes on from its last checkpoint."""
    written = answers(pair, recipe, folder)
    head, scales = new_head(pair, recipe), scales_of(pair, recipe, written[0])
    states = LayerStates(pair.target, recipe.layers)
    pair.target.requires_grad_(False)

    def loss(step: int, texts: list[Text]) -> Tensor:
        draws = torch.Generator().manual_seed(random.Random(f"{recipe.seed}/{step}").getrandbits(63))
        return loss_of(head, pair.target, states, scales, texts, recipe, draws)

    descend(pair, recipe, head, written, loss, folder, **options)
    with torch.no_grad():
        head.fc.weight *= scales
    return head


app = study(Recipe(), fit)

if __name__ == "__main__":
    app()
