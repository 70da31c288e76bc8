"""Models of a large geometry that compute what a small one computes, to the last choice of a token.

The cost of a forward depends on the model's sizes alone, and a rule's decisions on its distributions alone. So a small
trained model that is padded to the sizes of a large one shows the large one's speed with real decisions.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PretrainedConfig, PreTrainedModel

from hf_lossy_assist.heads import Head, ModelIdentity
from hf_lossy_assist.pairs import Pair


@dataclass(frozen=True)
class Geometry:
    """The sizes of a Llama, by the names of its configuration."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int

    @classmethod
    def of(cls, config: PretrainedConfig) -> Geometry:
        return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})


PRESETS: Mapping[str, Geometry] = {
    "llama-1b": Geometry(2048, 16, 32, 8, 64, 8192, 128256),
    "llama-8b": Geometry(4096, 32, 32, 8, 128, 14336, 128256),
    "llama-70b": Geometry(8192, 80, 64, 8, 128, 28672, 128256),
}
"""Llama 3.2 1B, Llama 3.1 8B and 70B."""

# Padded tokens are never chosen while the root mean square of the final norm's input is below this.
_LARGEST_RMS = 1e3
_PADDING_STD = 0.02
_NOISE = 2**24


class Reserve(NamedTuple):
    """Constants in the added hidden dimensions, by which the LM head tells padded tokens from real ones."""

    dims: int  # the added dimensions
    constant: float  # what the embedding writes into each
    eps: float  # the norms' epsilon, less the energy of the constants


def grow(model: PreTrainedModel, new: Geometry) -> PreTrainedModel:
    """Return a model of a larger geometry that computes the same function, in the same dtype, on the same device.

    - **Width.** Added hidden dimensions hold zeros. A norm then divides by ``√(Σh²/D + ε·d/D)``, so its weights are
      multiplied by ``√(d/D)``, and its ε by ``d/D``.
    - **Heads.** Query rows are multiplied by ``√(D_head/d_head)``, which undoes the change of the attention's scale.
      Pairs of rotary dimensions move to the index of the same frequency.
    - **Added heads, neurons and layers** have output projections of zero.
    - **Added tokens** are never chosen. An LM head has no bias, and a row of zeros would win where all real logits are
      negative, so every real token's embedding carries a small constant in the added dimensions, whose energy the
      norms' ε makes room for (``Σc² = ε·d/2``). Nothing reads it before the final norm, and there only the rows of
      added tokens do, with weights so negative that their logits lie more than 100 below every real one.

    Elsewhere the padding is random, of the size of trained weights: a matrix product over zeros takes as long, but
    draws less power on a GPU, which then clocks higher. In float32 logits differ by rounding alone; in half precision
    the scaled weights are rounded too, unless d/D and D_head/d_head are powers of four.

    Parameters
    ----------
    model
        A Llama like those of the bundled pair: with a key head for each query head, plain rotary frequencies, tied
        embeddings and no biases. It is left as it is.
    new
        The wanted sizes, none of them smaller than the model's, with more hidden dimensions: at least 64 for a larger
        vocabulary, since DropMatch drops some of those that keep padded tokens out. A ``head_dim`` is a multiple of the
        model's.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> target = pairs.load("arithmetic").target
    >>> grown = grow(target, dataclasses.replace(Geometry.of(target.config), num_hidden_layers=6, hidden_size=320))
    >>> ids = torch.tensor([[1, 5, 9]])
    >>> (grown(ids).logits - target(ids).logits).abs().max().item() < 1e-3
    True
    """
    old = Geometry.of(model.config)
    reserve = _reserve(model, old, new)
    grown = _empty(model, new, reserve)
    _Filling(model, grown, old, new, reserve).run()
    grown.generation_config = copy.deepcopy(model.generation_config)
    return grown.eval()


def _reserve(model: PreTrainedModel, old: Geometry, new: Geometry) -> Reserve:
    eps, dims = model.config.rms_norm_eps, new.hidden_size - old.hidden_size
    # A power of two is the same number in every precision.
    constant = 2.0 ** math.floor(math.log2(math.sqrt(eps * old.hidden_size / 2 / dims)))
    return Reserve(dims, constant, (eps * old.hidden_size - dims * constant**2) / new.hidden_size)


def _empty(model: PreTrainedModel, new: Geometry, reserve: Reserve) -> PreTrainedModel:
    # The embedding holds constants, and the head the weights that read them.
    own = {"rms_norm_eps": reserve.eps, "tie_word_embeddings": False}
    fields = model.config.to_dict() | dataclasses.asdict(new) | own
    config = type(model.config).from_dict(fields, attn_implementation=model.config._attn_implementation)
    config.dtype = model.dtype
    with torch.device("meta"):
        grown = type(model)(config).to(model.dtype)
    grown = grown.to_empty(device=model.device)
    # Frequencies are not parameters, so emptying the model has lost them.
    grown.model.rotary_emb = type(grown.model.rotary_emb)(config).to(model.device)
    return grown


class _Filling:
    """Writes the weights of a grown model."""

    def __init__(
        self, model: PreTrainedModel, grown: PreTrainedModel, old: Geometry, new: Geometry, reserve: Reserve
    ) -> None:
        self.model, self.grown, self.old, self.new, self.reserve = model, grown, old, new, reserve
        # Drawn once and repeated: billions of draws would take longer than the measurement.
        self.noise = torch.empty(_NOISE, dtype=grown.dtype, device=grown.device)
        self.noise.normal_(0.0, _PADDING_STD, generator=torch.Generator(grown.device).manual_seed(0))
        # Where entries go: a key head serves several query heads now, of which the first is real.
        self.queries, self.keys = self._heads(new.num_attention_heads // new.num_key_value_heads), self._heads(1)
        # These keep their index, and added ones follow them.
        sizes = old.hidden_size, old.intermediate_size
        self.hidden, self.neurons = (torch.arange(n, device=grown.device) for n in sizes)

    def _heads(self, apart: int) -> Tensor:
        """Place the features of all heads, which are so far ``apart``; a rotary pair keeps its frequency."""
        old, new = self.old.head_dim, self.new.head_dim
        pairs = torch.arange(old // 2) * (new // old)
        features = torch.cat([pairs, pairs + new // 2])  # the halves of a head hold the two dimensions of every pair
        heads = torch.arange(self.old.num_attention_heads) * apart
        return (heads[:, None] * new + features).flatten().to(self.grown.device)

    @torch.no_grad()
    def run(self) -> None:
        for i, layer in enumerate(self.grown.model.layers):
            self._noise(layer)
            for silent in (layer.self_attn.o_proj, layer.mlp.down_proj):  # added ones add nothing to the stream
                silent.weight.zero_()
            if i < self.old.num_hidden_layers:
                self._layer(self.model.model.layers[i], layer)
            else:
                for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                    norm.weight.fill_(1.0)
        self._norm(self.model.model.norm, self.grown.model.norm)
        self._vocabulary()

    def _layer(self, old: nn.Module, new: nn.Module) -> None:
        query_rows = new.self_attn.q_proj.weight.unflatten(0, (self.new.num_attention_heads, self.new.head_dim))
        # Added dimensions of a head must not add to its scores, so the queries of real heads have none.
        query_rows[(self.queries // self.new.head_dim).unique()] = 0.0
        for name, rows, columns in (
            ("self_attn.q_proj", self.queries, self.hidden), ("self_attn.k_proj", self.keys, self.hidden),
            ("self_attn.v_proj", self.keys, self.hidden), ("self_attn.o_proj", self.hidden, self.queries),
            ("mlp.gate_proj", self.neurons, self.hidden), ("mlp.up_proj", self.neurons, self.hidden),
            ("mlp.down_proj", self.hidden, self.neurons),
        ):  # fmt: skip
            scale = math.sqrt(self.new.head_dim / self.old.head_dim) if name.endswith("q_proj") else 1.0
            block = scale * old.get_submodule(name).weight.float()
            new.get_submodule(name).weight[rows[:, None], columns] = block.to(self.grown.dtype)
        for name in ("input_layernorm", "post_attention_layernorm"):
            self._norm(getattr(old, name), getattr(new, name))

    def _vocabulary(self) -> None:
        small, embedding = self.model.model.embed_tokens.weight, self.grown.model.embed_tokens.weight
        added, head = slice(self.old.hidden_size, None), self.grown.lm_head.weight
        embedding.zero_()
        embedding[: self.old.vocab_size, : self.old.hidden_size] = small
        embedding[: self.old.vocab_size, added] = self.reserve.constant
        self._noise(self.grown.lm_head)
        head[: self.old.vocab_size] = 0.0
        head[: self.old.vocab_size, : self.old.hidden_size] = small
        # Behind the final norm every constant is 1 / rms of the small model's residual stream.
        norm = self.grown.model.norm.weight
        norm[added] = math.sqrt(self.old.hidden_size / self.new.hidden_size) / self.reserve.constant
        rows = max(small.float().norm(dim=-1).max().item(), _PADDING_STD * math.sqrt(2 * self.old.hidden_size))
        largest = rows * self.model.model.norm.weight.float().abs().max().item() * math.sqrt(self.old.hidden_size)
        head[self.old.vocab_size :, added] = -(2 * largest + 100) * _LARGEST_RMS / self.reserve.dims

    def _norm(self, old: nn.Module, new: nn.Module) -> None:
        new.weight.zero_()
        new.weight[: self.old.hidden_size] = math.sqrt(self.old.hidden_size / self.new.hidden_size) * old.weight.float()

    def _noise(self, layer: nn.Module) -> None:
        for parameter in layer.parameters():
            for part in parameter.view(-1).split(len(self.noise)):
                part.copy_(self.noise[: len(part)])


def grow_pair(pair: Pair, target: Geometry, draft: Geometry) -> Pair:
    """Return a pair in other geometries, of one vocabulary; its heads grow along."""
    models = {"target": grow(pair.target, target), "draft": grow(pair.draft, draft)}
    heads = {name: grow_head(head, models) for name, head in pair.heads.items()}
    return dataclasses.replace(pair, **models, heads=heads)


def grow_head(head: Head, models: Mapping[str, PreTrainedModel]) -> Head:
    """Return a head whose scores of grown ``models``, by role, are those of ``head`` for the models before they grew.

    A grown model's hidden state begins with the small model's own, so the weight is extended by zeros.
    """
    owners = [column.split("_")[0] for column in head.config.columns]
    parts = head.weight.split([getattr(head.config, owner).hidden_size for owner in owners])
    wide = [pad(part, (0, models[x].config.hidden_size - len(part))) for x, part in zip(owners, parts, strict=True)]
    identities = {role: ModelIdentity.of(model) for role, model in models.items()}
    return type(head)(dataclasses.replace(head.config, **identities), torch.cat(wide), head.bias)
