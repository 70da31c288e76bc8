"""Training of EAGLE-3 heads, which learn the target's distribution from its states and from their own outputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import dropout, embedding, pad
from transformers import LlamaConfig, PreTrainedModel

from ...drafting.eagle3 import Eagle3
from ...drafting.eagle3_config import Eagle3Config
from .draft_objective import CAUTION, DraftObjective, soft_cross_entropy


def usual_layers(target: PreTrainedModel) -> tuple[int, ...]:
    """Return the layers whose states a head reads: the usual three, or others of a shallow target."""
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    return (2, depth // 2, depth - 3) if depth > 6 else tuple(sorted({0, depth // 2, depth}))


def new_eagle3(target: PreTrainedModel, ids: Tensor, states: Tensor, name: str | None = None) -> Eagle3:
    """Return an untrained head that drafts the tokens ``ids``; ``name`` is the target's, for the card.

    Its norm and LM head start as the target's, its first attention heads look at the latest tokens, and its inputs are
    scaled by a sample of them, ``states`` ``(N, k·d)``.
    """
    config = target.config.get_text_config(decoder=True)
    width, heads = config.hidden_size, config.num_attention_heads
    # Not every architecture has all of these fields.
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)
    layer = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=width, num_hidden_layers=1,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * width,
        num_attention_heads=heads, num_key_value_heads=heads,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6), max_position_embeddings=config.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )  # fmt: skip
    head = Eagle3(Eagle3Config(
        layer, draft_vocab_size=len(ids), target_hidden_size=width, target_layers=usual_layers(target), fc_norm=True,
        target_name=name, target_architectures=(type(target).__name__,),
    ))  # fmt: skip
    ids = ids.sort().values
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
        _read_evenly(head, states.float())
        _look_back(head)
        head.d2t.copy_(ids.cpu() - torch.arange(len(ids)))
        head.lm_head.weight.copy_(target.get_output_embeddings().weight[ids.to(target.device)])
        if (norm := getattr(target.get_decoder(), "norm", None)) is not None and norm.weight.shape == (width,):
            head.norm.weight.copy_(CAUTION * norm.weight)
    return head.float()


_CONSTANT = 3.0
_LOOKS = (0, 0, 0, 1, 1, 2)
_SHARPNESS = 5.7


def _read_evenly(head: Eagle3, states: Tensor) -> None:
    """Scale all entries of the fused states alike, and confine what is constant to the first entry of g.

    A few entries of a model's states are a hundred times larger than the others, and nearly constant. Adam's steps are
    equally long for every weight, so these entries would dominate g and its norm would hide what differs between
    tokens.
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
    matrix[0] = _CONSTANT * direction / mean.norm()
    head.fc.weight.copy_(matrix)


def _look_back(head: Eagle3) -> None:
    """Let the first attention heads look at the latest token, the one before it, and so on.

    The head sees the latest token through attention alone, which would otherwise start as an average over the text. The
    first entry of g is constant, so it gives queries and keys that depend on positions only.
    """
    attention, layer = head.layers[0].self_attn, head.config.layer
    size, width = layer.head_dim, layer.hidden_size
    speeds = head.rotary_emb.inv_freq[: size // 4]
    there = torch.arange(len(speeds))
    for i, distance in enumerate(_LOOKS[: layer.num_attention_heads]):
        rows = slice(i * size, (i + 1) * size)
        query, key = attention.q_proj.weight[rows, width], attention.k_proj.weight[rows, width]
        query.zero_(), key.zero_()
        key[there] = query[there] = _SHARPNESS / _CONSTANT
        query[there] *= torch.cos(distance * speeds)
        query[there + size // 2] = -_SHARPNESS / _CONSTANT * torch.sin(distance * speeds)
        attention.v_proj.weight[rows, :width].normal_(std=width**-0.5)


class Eagle3Objective(DraftObjective):
    """The training-time test of a head: at every position it is unrolled as in drafting.

    Li et al. 2025 (EAGLE-3, arXiv 2503.01840), section 3.2. The first of ``steps`` reads the target's states; each
    later one reads the output before it, with ``decay`` times the weight. The first share ``single`` of the training
    has one step only: it is three times as fast as three steps, and teaches what all of them need. ``dropout`` applies
    to embeddings, fused states and the input of the LM head, because a head memorises some hundred thousand tokens in a
    few epochs.
    """

    def __init__(
        self, head: Eagle3, target: PreTrainedModel, steps: int = 3, decay: float = 0.9, single: float = 0.0,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(target)
        self.head = head
        self.steps, self.decay, self.single, self.dropout = steps, decay, single, dropout

    def forward(self, ids: Tensor, answers: Tensor, states: Tensor, last: Tensor, done: float = 1.0) -> Tensor:
        total, count = 0.0, 0.0
        # Renormalised over the tokens that the head can draft.
        rows = self.target.get_output_embeddings().weight.detach()[self.head.target_ids]
        p = (last.to(rows.dtype) @ rows.T).softmax(-1)
        for step, drafted in enumerate(self._unrolled(ids, states, 1 if done < self.single else self.steps)):
            kept = _wanted(answers, step)
            places = kept.nonzero()
            normed = drafted if self.head.config.norm_output else self.head.norm(drafted)
            wanted = p[places[:, 0], places[:, 1] + step + 1]
            loss = soft_cross_entropy(self._dropped(normed[kept]), self.head.lm_head.weight, wanted.__getitem__)
            weight = self.decay**step
            total, count = total + weight * loss, count + weight * len(places)
        return total / max(count, 1.0)

    @torch.no_grad()
    def matches(self, ids: Tensor, answers: Tensor, states: Tensor, last: Tensor, gamma: int) -> Tensor:
        found = torch.zeros(*ids.shape, gamma, dtype=torch.bool, device=ids.device)
        for step, drafted in enumerate(self._unrolled(ids, states, gamma)):
            tokens = self.head.target_ids[self.head.logits(drafted).argmax(-1)]
            found[:, 1:, step] = (tokens == _wanted(ids, step)) & _wanted(answers, step)
        return found

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)

    def _unrolled(self, ids: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
        """Yield the head's output ``(B, L - 1, d)`` of every step.

        Slot t starts from the target's state at token t and the token after it. In a later step, a slot sees what the
        first step saw of the text, and its own outputs of the steps between.
        """
        head, slots = self.head, ids.shape[1] - 1
        embeds = embedding(ids, head.embeddings(self.target).detach())
        embeds = pad(self._dropped(embeds), (0, 0, 0, steps))
        cache, device = head.new_cache(), ids.device
        positions = torch.arange(slots, device=device)[None]
        mask = torch.ones(slots, slots, dtype=torch.bool, device=device).tril()
        own = torch.eye(slots, dtype=torch.bool, device=device)
        states = self._dropped(head.fuse(states[:, :-1]))
        for step in range(steps):
            seen = None if step == 0 else torch.cat([mask, *[own] * step], dim=-1)[None, None]
            states = head(embeds[:, step + 1 : step + 1 + slots], states, positions + step, seen, cache)
            yield states


def _wanted(tokens: Tensor, step: int) -> Tensor:
    """Return ``(B, L - 1)``: at slot t, the entry of token t + step + 2, which the step drafts."""
    return pad(tokens, (0, step + 1))[:, step + 2 :]
