"""Train an EAGLE-3 head for the bundled target: ``python -m benchmarks.train_eagle3 --help``.

A recipe of its own, for a target of this size on one CPU core. For real targets, use speculators or SpecForge.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig

from benchmarks.bundled_pair.state_heads import HeadRecipe, LayerStates, answers, descend, layer_of, study
from benchmarks.bundled_pair.steps import Text
from hf_lossy_assist import Eagle3, pairs


@dataclass(frozen=True)
class Recipe(HeadRecipe):
    """The steps begin on one drafted token, which is faster."""

    unrolled: int = 4  # drafted tokens in a row that the steps of the cosine train on
    beyond: int = 110

    @property
    def single(self) -> int:
        """Return how many steps have one drafted token."""
        return self.steps + self.beyond - self.cosine


def new_head(pair: pairs.Pair, recipe: Recipe, texts: list[Text]) -> Eagle3:
    """Return an untrained head, which drafts the tokens that answers have."""
    torch.manual_seed(recipe.seed)
    config = pair.target.config
    new = (example.solution for example in pair.task.draw("train", 2000, random.Random(f"{recipe.seed}/vocabulary")))
    drafted = {pair.tokenizer.eos_token_id, *(token for ids, start in texts for token in ids[start:].tolist())}
    drafted.update(token for ids in pair.tokenizer([*new], add_special_tokens=False)["input_ids"] for token in ids)
    ids = torch.tensor(sorted(drafted))
    bundled = Eagle3.from_pretrained(pairs.hub_cards() / "arithmetic-eagle3").config  # whose conventions it keeps
    head = Eagle3(replace(
        bundled, layer=layer_of(LlamaConfig, config, recipe), draft_vocab_size=len(ids),
        target_hidden_size=config.hidden_size, target_layers=recipe.layers,
    ))  # fmt: skip
    sample = LayerStates(pair.target, recipe.layers).of(pair.target, texts[0][0])
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
        read_evenly(head, sample)
        look_back(head)
        head.d2t.copy_(ids - torch.arange(len(ids)))
        head.lm_head.weight.copy_(pair.target.lm_head.weight[ids])
        head.norm.weight.copy_(0.3 * pair.target.model.norm.weight)  # untrained, it should hardly be sure of a token
    return head.float().train()


def read_evenly(head: Eagle3, states: Tensor) -> None:
    """Scale all entries of the fused states alike, and confine what is constant to the first entry of g.

    A few entries of a model's states are much larger than the others, and nearly constant. Adam's steps are equally
    long for every weight, so these entries would dominate g, and its norm would hide what differs between tokens.
    """
    sizes = []
    for norm, part in zip(head.fc_norm, states.chunk(len(head.fc_norm), dim=-1), strict=True):
        size = part.square().mean(0).sqrt().clamp(min=1e-6)
        norm.weight.copy_(part.square().mean(-1).sqrt().median() / size)
        sizes.append(size)
    mean = (states / torch.cat(sizes)).mean(0)
    direction = mean / mean.norm()
    matrix = torch.randn_like(head.fc.weight) / mean.numel() ** 0.5
    matrix -= torch.outer(matrix @ direction, direction)
    matrix[0] = CONSTANT * direction / mean.norm()
    head.fc.weight.copy_(matrix)


CONSTANT, SHARPNESS = 3.0, 5.7
LOOKS = (0, 1, 2)


def look_back(head: Eagle3) -> None:
    """Let groups of attention heads look at the latest token, the one before it, and so on.

    The head sees the latest token through attention alone, which would otherwise start as an average over the text. The
    first entry of g is constant, so it gives queries and keys that depend on positions only.
    """
    attention, layer = head.layers[0].self_attn, head.config.layer
    size, width = layer.head_dim, layer.hidden_size
    group = layer.num_attention_heads // layer.num_key_value_heads
    speeds = head.rotary_emb.inv_freq[: size // 4]
    there = torch.arange(len(speeds))
    for i, distance in enumerate(LOOKS[: layer.num_key_value_heads]):
        rows = slice(i * size, (i + 1) * size)
        key = attention.k_proj.weight[rows, width]
        key.zero_()
        key[there] = SHARPNESS / CONSTANT
        attention.v_proj.weight[rows, :width].normal_(std=width**-0.5)
        query = attention.q_proj.weight[i * group * size : (i * group + 1) * size, width]  # the others learn to look
        query.zero_()
        query[there] = SHARPNESS / CONSTANT * torch.cos(distance * speeds)
        query[there + size // 2] = -SHARPNESS / CONSTANT * torch.sin(distance * speeds)


def loss_of(head: Eagle3, target, states: LayerStates, texts: list[Text], steps: int, decay: float) -> Tensor:
    """Return the training-time test's loss (EAGLE-3, arXiv 2503.01840, section 3.2): -Σ p log q, a mean over tokens.

    At every position the head is unrolled as in drafting. The first step reads the target's states, each later one the
    output before it. ``p`` is the target's distribution, renormalised over the tokens that the head drafts.
    """
    ids = pad_sequence([text for text, _ in texts], batch_first=True)
    places = torch.arange(ids.shape[1])
    begin, end = torch.tensor([[start, len(text)] for text, start in texts]).T[..., None]
    answer = (places >= begin) & (places < end)
    with torch.no_grad(), states.watched():
        p = target(ids, use_cache=False).logits[..., head.target_ids].float().softmax(-1)
        read = states.pop()
    slots = ids.shape[1] - 1
    embeds = pad(embedding(ids, head.embeddings(target)), (0, 0, 0, steps))
    causal, own = torch.ones(slots, slots, dtype=torch.bool).tril(), torch.eye(slots, dtype=torch.bool)
    cache, positions = head.new_cache(), torch.arange(slots)[None]
    output, total, count = head.fuse(read[:, :-1]), 0.0, 0.0
    for step in range(steps):
        # A slot sees what the first step saw of the text, and its own outputs of the steps between.
        mask = torch.cat([causal, *[own] * step], dim=-1)[None, None]
        output = head(embeds[:, step + 1 : step + 1 + slots], output, positions + step, mask, cache)
        wanted = pad(answer, (0, step + 1))[:, step + 2 :]  # slot t drafts token t + step + 2
        row, slot = wanted.nonzero().T
        logs = head.logits(output[row, slot]).float().log_softmax(-1)
        weight = decay**step
        total = total - weight * (p[row, slot + step + 1] * logs).sum()
        count += weight * len(row)
    return total / count


def fit(pair: pairs.Pair, recipe: Recipe, folder: Path, **options: Any) -> Eagle3:
    """Return the trained head; a run that was interrupted goes on from its last checkpoint."""
    written = answers(pair, recipe, folder)
    head, states = new_head(pair, recipe, written), LayerStates(pair.target, recipe.layers)

    def loss(step: int, texts: list[Text]) -> Tensor:
        unrolled = 1 if step < recipe.single else recipe.unrolled
        return loss_of(head, pair.target, states, texts, unrolled, recipe.decay)

    return descend(pair, recipe, head, written, loss, folder, **options)


app = study(Recipe(), fit)

if __name__ == "__main__":
    app()
