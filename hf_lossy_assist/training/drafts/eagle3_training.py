"""What an EAGLE-3 head learns: the target's law, also from states that the head itself has made."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import dropout, embedding, pad
from transformers import LlamaConfig, PreTrainedModel

from ...drafting.eagle3 import Eagle3
from ...drafting.eagle3_config import Eagle3Config
from .draft_batches import DraftBatch
from .draft_objective import DraftObjective
from .law_loss import CAUTION, law_loss


def usual_layers(target: PreTrainedModel) -> tuple[int, ...]:
    """Return the states of a target that a head reads: the usual three, or others where the target has few layers."""
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    return (2, depth // 2, depth - 3) if depth > 6 else tuple(sorted({0, depth // 2, depth}))


def new_eagle3(target: PreTrainedModel, ids: Tensor, states: Tensor, name: str | None = None) -> Eagle3:
    """Return a head for a target that drafts the tokens ``ids``, to be trained.

    Its norm and LM head begin as the target's, and its first attention heads look at the latest tokens.

    Parameters
    ----------
    target
        The target.
    ids
        The draft vocabulary.
    states
        ``(N, k·d)`` what it will read, at some tokens: it begins on the scale of these.
    name
        The target's name, for the card.
    """
    config = target.config.get_text_config(decoder=True)
    width, heads = config.hidden_size, config.num_attention_heads
    # Sizes that not every architecture names.
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)
    layer = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=width,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * width,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    shape = Eagle3Config(
        layer,
        draft_vocab_size=len(ids),
        target_hidden_size=width,
        target_layers=usual_layers(target),
        fc_norm=True,
        target_name=name,
        target_architectures=(type(target).__name__,),
    )
    head = Eagle3(shape)
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
    """Let what is fused have about the same size in every entry, and nothing in g be constant but its first entry.

    A few entries of a model's states are a hundred times as large as the others, and the same everywhere. With those
    in it, a step of Adam, which is as long for every weight, would throw g about, and its norm would drown what
    differs between tokens.
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
    """Let the first attention heads look at the latest token, at the one before it, and so on.

    The latest token is known to the head through its attention alone, and without this it would begin by averaging
    over the whole text. The first entry of g, which is constant, gives queries and keys that depend on positions only.
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
    """The training-time test of a head: at every position it is unrolled as drafting unrolls it.

    Parameters
    ----------
    head
        The head.
    target
        The model that it is trained for, which stays as it is.
    steps
        How often it is unrolled; the first step reads the target's states, every further one the output before.
    decay
        By what the weight of every further step is multiplied.
    single
        Share of the training, at its beginning, in which it is not unrolled: what the first step needs, the others
        need too, and a step alone is three times as fast as three.
    dropout
        Of embeddings, of what is fused, and of what enters the LM head, while it is trained: a head learns some hundred
        thousand tokens by heart in a few epochs.
    """

    def __init__(
        self,
        head: Eagle3,
        target: PreTrainedModel,
        steps: int = 3,
        decay: float = 0.9,
        single: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(target)
        self.head = head
        self.steps, self.decay, self.single, self.dropout = steps, decay, single, dropout
        self._now = steps

    def begin(self, done: float) -> None:
        self._now = 1 if done < self.single else self.steps

    def forward(self, batch: DraftBatch) -> Tensor:
        total, count = 0.0, 0.0
        # Of the target's law only what the head can draft counts, and adds up to 1.
        rows = self.target.get_output_embeddings().weight.detach()[self.head.target_ids]
        laws = (batch.last.to(rows.dtype) @ rows.T).softmax(-1)
        for step, states in enumerate(self._unrolled(batch, self._now)):
            kept = self._wanted(batch, step)
            places = kept.nonzero()
            normed = states if self.head.config.norm_output else self.head.norm(states)
            found = laws[places[:, 0], places[:, 1] + step + 1]
            loss = law_loss(self._dropped(normed[kept]), self.head.lm_head.weight, found.__getitem__)
            weight = self.decay**step
            total, count = total + weight * loss, count + weight * len(places)
        return total / max(count, 1.0)

    @torch.no_grad()
    def matches(self, batch: DraftBatch, gamma: int) -> Tensor:
        found = torch.zeros(*batch.ids.shape, gamma, dtype=torch.bool, device=batch.ids.device)
        for step, states in enumerate(self._unrolled(batch, gamma)):
            drafted = self.head.target_ids[self.head.logits(states).argmax(-1)]
            right = drafted == pad(batch.ids, (0, step + 1))[:, step + 2 :]
            found[:, 1:, step] = right & self._wanted(batch, step)
        return found

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)

    def _wanted(self, batch: DraftBatch, step: int) -> Tensor:
        """Return ``(B, L - 1)`` at which slots a step drafts a token of the answer."""
        return pad(batch.answers, (0, step + 1))[:, step + 2 :]

    def _unrolled(self, batch: DraftBatch, steps: int) -> Iterator[Tensor]:
        """Yield ``(B, L - 1, d)`` the head's output of every step.

        Slot t is about the target's state at token t and the token behind it. In a later step, every slot sees the
        target's states as far as the first step saw them, and what the steps between have made of its own draft.
        """
        head, slots = self.head, batch.ids.shape[1] - 1
        embeds = embedding(batch.ids, head.embeddings(self.target).detach())
        embeds = pad(self._dropped(embeds), (0, 0, 0, steps))
        cache, device = head.new_cache(), batch.ids.device
        positions = torch.arange(slots, device=device)[None]
        mask = torch.ones(slots, slots, dtype=torch.bool, device=device).tril()
        own = torch.eye(slots, dtype=torch.bool, device=device)
        states = self._dropped(head.fuse(batch.states[:, :-1]))
        for step in range(steps):
            seen = None if step == 0 else torch.cat([mask, *[own] * step], dim=-1)[None, None]
            states = head(embeds[:, step + 1 : step + 1 + slots], states, positions + step, seen, cache)
            yield states
