"""Models of a large geometry that compute what a small one computes, to the last choice of a token.

The cost of a forward depends on the model's sizes alone, and a rule's decisions on its distributions alone. So a small
trained model that is padded to the sizes of a large one shows the large one's speed with real decisions.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_lossy_assist import LossyUnsupportedError, LossyValueError

from .geometry import Geometry

FAMILY = ("llama", "mistral")
"""Model types whose modules are known here."""

MIN_RESERVED = 64
"""Fewest added hidden dimensions that can keep padded tokens out; DropMatch drops some of them."""

# Padded tokens are never chosen while the root mean square of the final norm's input is below this.
_LARGEST_RMS = 1e3
_PADDING_STD = 0.02
_NOISE = 2**24


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the entries of one dimension go: entry ``source[i]`` of the small model is ``place[i]`` of the large."""

    source: Tensor
    place: Tensor


@dataclass(frozen=True)
class Reserve:
    """Constants in the added hidden dimensions, by which the LM head tells padded tokens from real ones.

    Attributes
    ----------
    dims
        How many added dimensions carry the constant; 0 where the vocabulary stays as it is.
    constant
        What the embedding writes into each.
    eps
        The norms' epsilon, less the energy of the constants.
    """

    dims: int
    constant: float
    eps: float


def grow(
    model: PreTrainedModel,
    geometry: Geometry,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Return a model of a larger geometry that computes the same function.

    - **Width.** Added hidden dimensions hold zeros. A norm then divides by ``√(Σh²/D + ε·d/D)``, so its weights are
      multiplied by ``√(d/D)``, and its ε by ``d/D``.
    - **Heads.** Query rows are multiplied by ``√(D_head/d_head)``, which undoes the change of the attention's scale.
      Pairs of rotary dimensions move to the index of the same frequency; where the wider head has no such index, θ
      becomes ``θ^(D_head/d_head)``, whose first frequencies are the small model's own.
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
        A Llama or Mistral; it is left as it is.
    geometry
        The wanted sizes, none of them smaller than the model's.
    dtype, device
        Of the grown model; by default those of the model.
    seed
        Seed of the padding.

    Raises
    ------
    LossyValueError
        When a size is too small, or the heads can't be placed.
    LossyUnsupportedError
        When the model is of another architecture, or its rotary embedding can't be moved to wider heads.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> target = pairs.load("arithmetic").target
    >>> grown = grow(target, Geometry(hidden=512, layers=6))
    >>> ids = torch.tensor([[1, 5, 9]])
    >>> (grown(ids).logits - target(ids).logits).abs().max().item() < 1e-3
    True
    """
    if model.config.model_type not in FAMILY:
        raise LossyUnsupportedError(
            f"only models of the types {list(FAMILY)} can be grown, but this one is a {model.config.model_type!r}"
        )
    old = Geometry.of(model.config)
    new = geometry.over(old)
    reserve = _reserve(model, old, new)
    heads = HeadPlacement(old, new)
    grown = _empty(model, new, reserve, heads, dtype or model.dtype, model.device if device is None else device)
    _check_rotary(model, grown, heads)
    _Filling(model, grown, heads, reserve, seed).run()
    grown.generation_config = copy.deepcopy(model.generation_config)
    return grown.eval()


class HeadPlacement:
    """Where heads and their rotary pairs go.

    Each key and value head of the small model becomes one of the large model, or several equal ones where the large
    model lets fewer query heads share one.
    """

    def __init__(self, old: Geometry, new: Geometry) -> None:
        self.old, self.new = old, new
        self.group, self.new_group = old.heads // old.kv_heads, new.heads // new.kv_heads
        self.copies = math.ceil(self.group / self.new_group)
        if old.kv_heads * self.copies > new.kv_heads:
            raise LossyValueError(
                f"`kv_heads` of a grown model has to be >= {old.kv_heads * self.copies} with {new.heads} heads, since "
                f"the model has {old.kv_heads} that {self.group} heads share each, but is {new.kv_heads}"
            )
        self.stretches = new.head_dim % old.head_dim == 0

    @property
    def pairs(self) -> Tensor:
        """``(d_head / 2,)`` the new index of every rotary pair."""
        stride = self.new.head_dim // self.old.head_dim if self.stretches else 1
        return torch.arange(self.old.head_dim // 2) * stride

    @property
    def theta_power(self) -> float:
        """Power of θ that gives the wider head the small one's frequencies."""
        return 1.0 if self.stretches else self.new.head_dim / self.old.head_dim

    def queries(self) -> Placement:
        """Place the outputs of the query heads."""
        heads = torch.arange(self.old.heads)
        kv, member = heads // self.group, heads % self.group
        slot = kv * self.copies + member // self.new_group
        return self._features(heads, slot * self.new_group + member % self.new_group)

    def keys(self) -> Placement:
        """Place the outputs of the key and value heads."""
        slots = torch.arange(self.old.kv_heads * self.copies)
        return self._features(slots // self.copies, slots)

    def _features(self, heads: Tensor, places: Tensor) -> Placement:
        # The halves of a head hold the two dimensions of every pair.
        half = torch.arange(self.old.head_dim // 2)
        source = torch.cat([half, half + self.old.head_dim // 2])
        place = torch.cat([self.pairs, self.pairs + self.new.head_dim // 2])
        return Placement(
            (heads[:, None] * self.old.head_dim + source).flatten(),
            (places[:, None] * self.new.head_dim + place).flatten(),
        )


def _reserve(model: PreTrainedModel, old: Geometry, new: Geometry) -> Reserve:
    eps = model.config.rms_norm_eps
    if new.vocab == old.vocab:
        return Reserve(0, 0.0, eps * old.hidden / new.hidden)
    dims = new.hidden - old.hidden
    if dims < MIN_RESERVED:
        raise LossyValueError(
            f"`hidden` of a grown model has to be >= {old.hidden + MIN_RESERVED} where `vocab` grows from {old.vocab} "
            f"to {new.vocab}, but is {new.hidden}"
        )
    # A power of two is the same number in every precision.
    constant = 2.0 ** math.floor(math.log2(math.sqrt(eps * old.hidden / 2 / dims)))
    return Reserve(dims, constant, (eps * old.hidden - dims * constant**2) / new.hidden)


def _empty(
    model: PreTrainedModel,
    new: Geometry,
    reserve: Reserve,
    heads: HeadPlacement,
    dtype: torch.dtype,
    device: torch.device | str,
) -> PreTrainedModel:
    fields = model.config.to_dict() | new.config_fields() | {"rms_norm_eps": reserve.eps}
    rope = dict(fields["rope_parameters"])
    fields["rope_parameters"] = rope | {"rope_theta": rope["rope_theta"] ** heads.theta_power}
    # The embedding holds constants, and the head the weights that read them.
    fields["tie_word_embeddings"] = model.config.tie_word_embeddings and reserve.dims == 0
    config = type(model.config).from_dict(fields, attn_implementation=model.config._attn_implementation)
    config.dtype = dtype
    with torch.device("meta"):
        grown = type(model)(config).to(dtype)
    _check_memory(grown, torch.device(device))
    grown = grown.to_empty(device=device)
    grown.tie_weights()
    # Frequencies are not parameters, so emptying the model has lost them.
    grown.model.rotary_emb = type(grown.model.rotary_emb)(config).to(device)
    return grown


def _check_memory(model: PreTrainedModel, device: torch.device) -> None:
    needed = sum(p.numel() * p.element_size() for p in model.parameters())
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        import psutil

        free = psutil.virtual_memory().available
    if needed > free:
        raise LossyValueError(
            f"`--grow` makes a model of {needed / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB are free on "
            f"{str(device)!r}; choose fewer layers, e.g. 'llama-8b,layers=4', or another `--dtype`"
        )


def _check_rotary(model: PreTrainedModel, grown: PreTrainedModel, heads: HeadPlacement) -> None:
    small, large = model.model.rotary_emb, grown.model.rotary_emb
    moved = large.inv_freq.cpu()[heads.pairs]
    same = torch.allclose(moved, small.inv_freq.cpu(), rtol=1e-5, atol=0)
    if not same or small.attention_scaling != large.attention_scaling:
        raise LossyUnsupportedError(
            f"rotary embeddings of the type {model.config.rope_parameters['rope_type']!r} can't be moved from heads of "
            f"{heads.old.head_dim} to heads of {heads.new.head_dim}; leave `head_dim` as it is"
        )


class _Filling:
    """Writes the weights of a grown model."""

    def __init__(
        self, model: PreTrainedModel, grown: PreTrainedModel, heads: HeadPlacement, reserve: Reserve, seed: int
    ) -> None:
        self.model, self.grown, self.heads, self.reserve = model, grown, heads, reserve
        self.old, self.new = heads.old, heads.new
        self.device = grown.device
        # Drawn once and repeated: billions of draws would take longer than the measurement.
        generator = torch.Generator(self.device).manual_seed(seed)
        self.noise = torch.empty(_NOISE, dtype=grown.dtype, device=self.device)
        self.noise.normal_(0.0, _PADDING_STD, generator=generator)
        # These keep their index, and added ones follow them.
        self.hidden, self.neurons = (
            Placement(torch.arange(n), torch.arange(n)) for n in (self.old.hidden, self.old.intermediate)
        )

    @torch.no_grad()
    def run(self) -> None:
        for i, layer in enumerate(self.grown.model.layers):
            self._noise(layer)
            if i < self.old.layers:
                self._layer(self.model.model.layers[i], layer)
            else:
                _silence(layer)
                for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                    norm.weight.fill_(1.0)
        self._norm(self.model.model.norm, self.grown.model.norm)
        self._vocabulary()

    def _layer(self, old: nn.Module, new: nn.Module) -> None:
        queries, keys = self.heads.queries(), self.heads.keys()
        query_rows = new.self_attn.q_proj.weight.unflatten(0, (self.new.heads, self.new.head_dim))
        # Added dimensions of a head must not add to its scores, so the queries of real heads have none.
        query_rows[(queries.place // self.new.head_dim).unique().to(self.device)] = 0.0
        scale = math.sqrt(self.new.head_dim / self.old.head_dim)
        _silence(new)
        for name, rows, columns in (
            ("self_attn.q_proj", queries, self.hidden), ("self_attn.k_proj", keys, self.hidden),
            ("self_attn.v_proj", keys, self.hidden), ("self_attn.o_proj", self.hidden, queries),
            ("mlp.gate_proj", self.neurons, self.hidden), ("mlp.up_proj", self.neurons, self.hidden),
            ("mlp.down_proj", self.hidden, self.neurons),
        ):  # fmt: skip
            factor = scale if name.endswith("q_proj") else 1.0
            self._linear(old.get_submodule(name), new.get_submodule(name), rows, columns, factor)
        for name in ("input_layernorm", "post_attention_layernorm"):
            self._norm(getattr(old, name), getattr(new, name))

    def _vocabulary(self) -> None:
        old_head, head = self.model.lm_head.weight, self.grown.lm_head.weight
        embedding, added = self.grown.model.embed_tokens.weight, slice(self.old.hidden, None)
        embedding.zero_()
        embedding[: self.old.vocab, : self.old.hidden] = self._here(self.model.model.embed_tokens.weight)
        if self.reserve.dims == 0:
            if head is not embedding:
                head.zero_()
                head[:, : self.old.hidden] = self._here(old_head)
            return
        embedding[: self.old.vocab, added] = self.reserve.constant
        self._noise(self.grown.lm_head)
        head[: self.old.vocab] = 0.0
        head[: self.old.vocab, : self.old.hidden] = self._here(old_head)
        # Behind the final norm every constant is 1 / rms of the small model's residual stream.
        norm = self.grown.model.norm.weight
        norm[added] = math.sqrt(self.old.hidden / self.new.hidden) / self.reserve.constant
        rows = max(old_head.float().norm(dim=-1).max().item(), _PADDING_STD * math.sqrt(2 * self.old.hidden))
        largest = rows * self.model.model.norm.weight.float().abs().max().item() * math.sqrt(self.old.hidden)
        head[self.old.vocab :, added] = -(2 * largest + 100) * _LARGEST_RMS / self.reserve.dims

    def _linear(self, old: nn.Linear, new: nn.Linear, rows: Placement, columns: Placement, scale: float) -> None:
        block = scale * old.weight.float()[rows.source][:, columns.source]
        new.weight[rows.place[:, None].to(self.device), columns.place.to(self.device)] = self._here(block)
        if old.bias is not None:
            new.bias.zero_()
            new.bias[rows.place.to(self.device)] = self._here(scale * old.bias.float()[rows.source])

    def _norm(self, old: nn.Module, new: nn.Module) -> None:
        new.weight.zero_()
        shrunk = math.sqrt(self.old.hidden / self.new.hidden) * old.weight.float()
        new.weight[: self.old.hidden] = self._here(shrunk)

    def _noise(self, layer: nn.Module) -> None:
        for parameter in layer.parameters():
            for part in parameter.view(-1).split(len(self.noise)):
                part.copy_(self.noise[: len(part)])

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.grown.dtype)


def _silence(layer: nn.Module) -> None:
    """Let a layer add nothing to the residual stream."""
    for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
        for parameter in linear.parameters():
            parameter.zero_()
