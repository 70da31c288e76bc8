"""Multi-token prediction: the layer with which many checkpoints draft for their own model, and transformers drops."""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ...compat.caches import CACHE
from ...compat.drafters import one_layer_decoder, several_or_sliding_mtp
from ...compat.models import device_of, origin_of
from ...drafting.state_head import StateHead
from ...drafting.vocabulary import SAME, Vocabulary
from ...errors import LossyUnsupportedError, LossyValueError
from ...heads.repository import local_files
from .base import Asked, register
from .eagle3 import Eagle3Kind

_INDEX = "model.safetensors.index.json"
_REMEDY = "leave it out, and pass an `assistant_model` or `prompt_lookup_num_tokens`"


@dataclass(frozen=True)
class MtpNames:
    """How a family's checkpoints name the parts of an MTP layer."""

    prefix: str  # a regular expression of what all their names begin with; {depth} is the target's number of layers
    parts: Mapping[str, str | None]  # how names go on, and what we call that; None for copies of the target's weights
    state_first: bool = False  # whether `fc` reads the state before the embedding

    def read(self, name: str, depth: int) -> str | None:
        """Return our name of a tensor, "" for a copy of the target's; None where it is no part of the layer."""
        if (found := re.match(self.prefix.format(depth=depth), name)) is None:
            return None
        rest = name[found.end() :]
        for theirs, ours in self.parts.items():
            if rest.startswith(theirs):
                return "" if ours is None else ours + rest.removeprefix(theirs)
        return rest


_SHARED = {"embed_tokens.": None, "shared_head.head.": None, "lm_head.": None}
NAMES = (
    MtpNames(  # Qwen3-Next, the Qwen3.5 family
        r"(model\.)?(language_model\.)?mtp\.",
        {"pre_fc_norm_embedding.": "enorm.", "pre_fc_norm_hidden.": "hnorm.", **_SHARED},
    ),
    MtpNames(  # MiMo
        r"model\.mtp_layers\.0\.",
        {
            "input_proj.": "fc.",
            "token_layernorm.": "enorm.",
            "hidden_layernorm.": "hnorm.",
            "final_layernorm.": "norm.",
            "": "layers.0.",
        },
        state_first=True,
    ),
    MtpNames(  # DeepSeek-V3, GLM-4.5 and their kind
        r"(model\.)?(language_model\.)?layers\.{depth}\.",
        {
            "eh_proj.": "fc.",
            "enorm.": "enorm.",
            "hnorm.": "hnorm.",
            "shared_head.norm.": "norm.",
            **_SHARED,
            "": "layers.0.",
        },
    ),
)
"""Which names are known; vLLM's ``qwen3_next_mtp.py``, ``mimo_mtp.py`` and ``deepseek_mtp.py`` read the same."""


class Mtp(StateHead):
    """A target's own layer for multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2).

    ``fc`` joins the target's normed state at a token with the embedding of the next one. A decoder layer of the
    target's kind reads that, and the target's LM head predicts the token after these. From the second drafted token
    on, the layer's own output is the state.

    Parameters
    ----------
    decoder
        A decoder of one layer, whose norm is the last one.
    names
        How the checkpoint names the layer's parts.
    """

    title = "an MTP layer"

    def __init__(self, decoder: PreTrainedModel, names: MtpNames) -> None:
        super().__init__()
        self.config = decoder.config
        self.width = width = self.config.hidden_size
        self.state_first = names.state_first
        self.enorm, self.hnorm = (type(decoder.norm)(width, eps=self.config.rms_norm_eps) for _ in range(2))
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layer, self.norm, self.rotary_emb = decoder.layers[0], decoder.norm, decoder.rotary_emb

    def tie(self, target: PreTrainedModel) -> None:
        """Follow a target's LM head, device and type. Neither the target nor its head becomes a part of the layer."""
        self._target, self._lm_head = weakref.ref(target), (target.get_output_embeddings(),)
        last = next(target.get_decoder().layers[-1].parameters())
        device = device_of(target) if last.is_meta else last.device
        if (self.device, self.dtype) != (device, target.dtype):
            self.to(device, target.dtype)

    def get_output_embeddings(self) -> nn.Module:
        """Return the target's LM head."""
        return self._lm_head[0]

    def check(self, target: PreTrainedModel) -> None:
        if self._target() is not target:
            raise LossyValueError(
                "`assistant_model` is the MTP layer of another model; pass `use_mtp=True`, which takes the target's own"
            )
        self.tie(target)
        self.embeddings(target)

    def layers_of(self, target: PreTrainedModel) -> tuple[int, ...]:
        # Normed, as the layer's own output is: measured by others, states before the norm cost acceptance
        # (vllm-project/vllm 47448, ggml-org/llama.cpp 24025).
        return (target.config.get_text_config(decoder=True).num_hidden_layers + 1,)

    def vocabulary(self, target: PreTrainedModel) -> Vocabulary:
        return SAME

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.config)

    def fuse(self, states: Tensor) -> Tensor:
        return states.to(self.device, self.dtype)

    def forward(
        self, embeds: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        """Run the layer over positions, and add these to the cache; all as in an EAGLE-3 head's."""
        both = self.enorm(embeds.to(states)), self.hnorm(states)
        joined = self.fc(torch.cat(both[::-1] if self.state_first else both, dim=-1))
        # Where images have positions along three axes, those of text are the same along each.
        axes = positions.expand(3, -1, -1) if hasattr(self.rotary_emb, "mrope_section") else positions
        rotary = self.rotary_emb(joined, axes)
        inputs = {"attention_mask": mask, "position_ids": positions, "position_embeddings": rotary, CACHE: cache}
        output = self.layer(joined, **inputs)
        return self.norm(output if isinstance(output, Tensor) else output[0])

    def logits(self, states: Tensor) -> Tensor:
        """Return logits ``(B, L, V)`` from the output of :meth:`forward`."""
        return self._lm_head[0](states)


_loaded: weakref.WeakKeyDictionary[PreTrainedModel, Mtp] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def mtp_of(target: PreTrainedModel) -> Mtp:
    """Return a target's MTP layer, read from its checkpoint in the first call, and freed with the target.

    Raises
    ------
    LossyValueError
        When the checkpoint can't be read, or has no MTP layer.
    LossyUnsupportedError
        When its MTP layer is not one decoder layer of the target's kind.
    """
    with _lock:
        if target not in _loaded:
            with torch.random.fork_rng(devices=[]):  # a first call draws as later ones do
                _loaded[target] = _load(target)
        head = _loaded[target]
    head.tie(target)
    return head


def _load(target: PreTrainedModel) -> Mtp:
    source = origin_of(target)[0]
    names, weights = _weights(target)
    own = {name: weights.pop(name, None) for name in ("enorm.weight", "hnorm.weight", "fc.weight")}
    kind = type(target).__name__
    try:
        decoder, wrong = one_layer_decoder(target, weights)
        head = Mtp(decoder, names)
        wrong += [f"{name} (missing)" for name, x in own.items() if x is None]
        if not wrong:
            head.load_state_dict(own, strict=False)
            for part in (head.enorm, head.hnorm, head.fc):
                part.to(target.dtype)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # a family of another build
        raise LossyUnsupportedError(
            f"`use_mtp` is set, but the MTP layer in {source!r} is no layer like those of {kind} ({error}); {_REMEDY}"
        ) from error
    if wrong:
        raise LossyUnsupportedError(
            f"`use_mtp` is set, but the MTP layer in {source!r} has other weights than a layer of {kind}, perhaps "
            f"because it is quantised: {', '.join(wrong[:3])}{' …' * (len(wrong) > 3)}; {_REMEDY}"
        )
    return head.eval().requires_grad_(False)


def _weights(target: PreTrainedModel) -> tuple[MtpNames, dict[str, Tensor]]:
    """Return how a target's checkpoint names its MTP layer, and the layer's tensors under our names."""
    source, commit = origin_of(target)
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    if not source:
        raise LossyValueError(
            "`use_mtp` reads the MTP layer from the target's checkpoint, but the target was not loaded from one; "
            f"load it with `from_pretrained`, or {_REMEDY}"
        )
    found: list[dict[str, Tensor]] = [{} for _ in NAMES]
    try:
        for path in _files(source, commit, depth):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    for names, tensors in zip(NAMES, found, strict=True):
                        if ours := names.read(name, depth):
                            tensors[ours] = file.get_tensor(name)
    except (OSError, SafetensorError, ValueError) as error:
        raise LossyValueError(f"`use_mtp` reads the MTP layer from the target's checkpoint: {error}") from error
    for names, tensors in zip(NAMES, found, strict=True):
        if tensors:
            return names, tensors
    raise LossyValueError(
        f"`use_mtp` is set, but the checkpoint {source!r} of the target has no MTP layer in safetensors under a name "
        f"that is known; {_REMEDY}"
    )


def _files(source: str, commit: str | None, depth: int) -> Iterator[Path]:
    """Yield the files of a checkpoint that may hold parts of an MTP layer."""
    folder, shards = local_files(source, (_INDEX,), revision=commit), ["*.safetensors"]
    if (index := folder / _INDEX).is_file():
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted({file for name, file in places.items() if any(x.read(name, depth) for x in NAMES)})
    if shards:
        folder = local_files(source, shards, revision=commit)
    for pattern in shards:
        yield from sorted(folder.glob(pattern))


@register
class MtpKind(Eagle3Kind):
    """`use_mtp` asks for the target's MTP layer, which drafts as an EAGLE-3 head does."""

    head = Mtp

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        alone = asked.assistant is None and asked.generator is None and not asked.options.keys() - {"use_mtp"}
        if alone and asked.options and not several_or_sliding_mtp(asked.target):
            return cls(replace(asked, assistant=mtp_of(asked.target), options={}))
        return super().chosen(asked)
