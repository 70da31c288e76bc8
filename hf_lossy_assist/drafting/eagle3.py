"""EAGLE-3 heads: a decoder layer on a target's own states, which drafts for that target."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any, Self
from zipfile import ZIP_STORED, ZipFile, is_zipfile

import torch
from huggingface_hub import ModelCardData
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ..compat import CACHE
from ..errors import LossyValueError
from ..heads.repository import CARD, CONFIG, WEIGHTS, local_files, read_config
from ..store.folder import writing
from .eagle3_config import Eagle3Config
from .state_head import StateHead
from .vocabulary import DraftVocabulary, vocabulary_sizes

_FILES = (CONFIG, "*.safetensors", "pytorch_model*.bin")
# `t2d` follows from `d2t`, and the others from the target or the configuration.
_SUPERFLUOUS = re.compile(r"t2d|verifier_(lm_head|norm)\..*|.*\.inv_freq")


class Eagle3(StateHead):
    """Drafts from three of the target's states at every position; pass it as ``assistant_model`` to ``generate()``.

    One decoder layer reads ``g_t``, the fused states, and ``x_(t+1)``, the token after them. It predicts ``x_(t+2)``
    over a draft vocabulary. From the second drafted token on, the layer's own output replaces g.

    Parameters
    ----------
    config
        Shape and conventions.
    own_embeddings
        Whether it has embeddings of its own; otherwise it reads the target's.

    Examples
    --------
    >>> from transformers import LlamaConfig
    >>> from hf_lossy_assist.drafting.eagle3_config import Eagle3Config
    >>> layer = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                     num_attention_heads=2)
    >>> head = Eagle3(Eagle3Config(layer, draft_vocab_size=32, target_hidden_size=16, target_layers=(0, 1, 2)))
    >>> head.fuse(torch.zeros(1, 5, 3 * 16)).shape
    torch.Size([1, 5, 16])
    """

    title = "an EAGLE-3 head"

    def __init__(self, config: Eagle3Config, own_embeddings: bool = False) -> None:
        super().__init__()
        self.config = config
        layer = config.layer
        self.width = layer.hidden_size
        values = {name: value for name, value in layer.to_dict().items() if name != "model_type"}
        self._inner = type(layer)(**values, attn_implementation="sdpa")
        decoder_layer, norm, rotary = _parts(layer.model_type)
        width, read = layer.hidden_size, config.layers_read * config.target_hidden_size
        self.embed_tokens = nn.Embedding(layer.vocab_size, width) if own_embeddings else None
        self.input_norm = norm(read, eps=layer.rms_norm_eps) if config.norm_before_fc else None
        self.fc_norm = None
        if config.fc_norm:
            norms = (norm(config.target_hidden_size, eps=layer.rms_norm_eps) for _ in range(config.layers_read))
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(read, width, bias=False)
        later = (decoder_layer(self._inner, i) for i in range(1, layer.num_hidden_layers))
        first = _FirstLayer(decoder_layer(self._inner, 0), norm(width, eps=layer.rms_norm_eps), config)
        self.layers = nn.ModuleList([first, *later])
        self.norm = norm(width, eps=layer.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.rotary_emb = rotary(self._inner)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type."""
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        """The weights' device."""
        return self.fc.weight.device

    @property
    def target_ids(self) -> Tensor:
        """``(V_draft,)`` the target's tokens that it can draft."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def get_output_embeddings(self) -> nn.Linear:
        """Return the head over the draft vocabulary."""
        return self.lm_head

    def check(self, target: PreTrainedModel) -> None:
        """Raise unless it can draft for ``target``; the error says what differs."""
        self.config.check(target)
        (size,) = vocabulary_sizes(target)
        if wrong := [int(x) for x in self.target_ids.aminmax() if not 0 <= x < size]:
            raise LossyValueError(
                f"`assistant_model` is an EAGLE-3 head that drafts the token {wrong[0]}, but the target has {size}; "
                "pass a head that was trained for this target"
            )
        self.embeddings(target)

    def embeddings(self, target: PreTrainedModel) -> Tensor:
        """Return the embeddings ``(V, d)`` that it reads: its own, or the target's as they are stored."""
        return super().embeddings(target) if self.embed_tokens is None else self.embed_tokens.weight

    def layers_of(self, target: PreTrainedModel) -> tuple[int, ...]:
        return self.config.layers_of(target)

    def vocabulary(self, target: PreTrainedModel) -> DraftVocabulary:
        return DraftVocabulary(self.target_ids, *vocabulary_sizes(target))

    def new_cache(self) -> DynamicCache:
        """Return an empty cache for its layers."""
        return DynamicCache(config=self._inner)

    def fuse(self, states: Tensor) -> Tensor:
        """Return g ``(B, L, d)``, fused from the target's states side by side."""
        states = states.to(self.device, self.dtype)
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            chunks = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        return self.fc(states)

    def forward(
        self, embeds: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        rotary = self.rotary_emb(states, positions)
        kwargs = {"attention_mask": mask, CACHE: cache, "position_embeddings": rotary}
        first, *later = self.layers
        states = first(embeds.to(states), states, **kwargs)
        for layer in later:
            states = layer(states, **kwargs)
        return self.norm(states) if self.config.norm_output else states

    def logits(self, states: Tensor) -> Tensor:
        """Return logits ``(B, L, V_draft)`` from the output of :meth:`forward`."""
        return self.lm_head(states if self.config.norm_output else self.norm(states))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
    ) -> Self:
        """Load a head from a folder or the Hub, as SafeAILab's EAGLE, SpecForge/SGLang or speculators write it.

        Nothing in it is executed: only tensors are read from a ``.bin`` file.

        Parameters
        ----------
        pretrained_model_name_or_path
            A folder, or an id such as ``"org/name"``.
        dtype
            Type of the weights; by default the stored one.
        revision, token, cache_dir, local_files_only
            As everywhere in ``huggingface_hub``.

        Raises
        ------
        LossyValueError
            When there is no head, it can't be reached, or its weights don't fit its configuration.
        """
        download = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        folder = local_files(pretrained_model_name_or_path, _FILES, revision=revision, **download)
        config = Eagle3Config.from_dict(read_config(folder))

        weights = _weights(folder)
        own_embeddings = "embed_tokens.weight" in weights
        try:
            with torch.device("meta"):  # a configuration may ask for any size
                blank = cls(config, own_embeddings)
        except Exception as error:  # of whatever kind: transformers makes the layer
            raise LossyValueError(
                f"the layer of the EAGLE-3 head in {str(folder)!r} can't be made, perhaps because of its `hidden_act`, "
                f"`rope_parameters`, `rope_scaling` or `rope_theta`: {error!r}"
            ) from error
        if config.draft_vocab_size == config.layer.vocab_size:
            weights.setdefault("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        try:
            blank.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise LossyValueError(
                f"the EAGLE-3 head in {str(folder)!r} has other weights than its {CONFIG} says: {error}; pass another "
                "head, or download it again"
            ) from error
        head = cls(config, own_embeddings)
        head.load_state_dict(weights)
        return head.to(dtype or weights["fc.weight"].dtype).eval()

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write configuration, weights and a model card into a folder, in the format of speculators and vLLM."""
        folder = Path(save_directory)
        weights = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        can_be_drafted = torch.zeros(self.config.layer.vocab_size, dtype=torch.bool)
        can_be_drafted[self.target_ids.cpu()] = True
        values = self.config.to_dict() | {"dtype": str(self.dtype).removeprefix("torch.")}
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            save_file(weights | {"t2d": can_be_drafted}, folder / WEIGHTS, metadata={"format": "pt"})
            (folder / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
            (folder / CARD).write_text(self._card(), encoding="utf-8")

    def _card(self) -> str:
        config = self.config
        target = config.target_name or "its target"
        data = ModelCardData(
            library_name="hf_lossy_assist",
            tags=["hf_lossy_assist", "speculative-decoding", "eagle3", "speculators"],
            base_model=config.target_name,
        )
        read = "the usual three" if config.target_layers is None else ", ".join(map(str, config.target_layers))
        return (Path(__file__).parent / "eagle3_card.md").read_text(encoding="utf-8").format(
            metadata=data.to_yaml(), target=target, parameters=f"{sum(p.numel() for p in self.parameters()):,}",
            layers=read, drafted=f"{config.draft_vocab_size:,}", vocabulary=f"{config.layer.vocab_size:,}",
        )  # fmt: skip


class _FirstLayer(nn.Module):
    """A decoder layer whose attention reads the token's embedding beside the state."""

    def __init__(self, plain: nn.Module, norm: nn.Module, config: Eagle3Config) -> None:
        super().__init__()
        self.self_attn, self.mlp = plain.self_attn, plain.mlp
        self.input_layernorm = plain.input_layernorm
        self.post_attention_layernorm = plain.post_attention_layernorm
        self.hidden_norm = norm
        self.norm_before_residual = config.norm_before_residual
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            new = nn.Linear(2 * config.layer.hidden_size, old.out_features, bias=old.bias is not None)
            setattr(self.self_attn, name, new)

    def forward(self, embeds: Tensor, states: Tensor, **kwargs: Any) -> Tensor:
        normed = self.hidden_norm(states)
        residual = normed if self.norm_before_residual else states
        both = torch.cat([self.input_layernorm(embeds), normed], dim=-1)
        states = residual + self.self_attn(hidden_states=both, **kwargs)[0]
        return states + self.mlp(self.post_attention_layernorm(states))


def _parts(kind: str) -> list[type[nn.Module]]:
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    return [getattr(module, kind.capitalize() + name) for name in ("DecoderLayer", "RMSNorm", "RotaryEmbedding")]


def _weights(folder: Path) -> dict[str, Tensor]:
    """Return a checkpoint's tensors under the names of speculators."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise LossyValueError(f"{str(folder)!r} has no weights of an EAGLE-3 head, neither safetensors nor a .bin file")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors = load_file(file) if file.suffix == ".safetensors" else _unpacked(file)
        except Exception as error:  # of whatever kind: the file is somebody else's
            raise LossyValueError(
                f"{str(file)!r} is cut short, or holds more than tensors and is not executed ({error!r}); save or "
                "download the head again, best as safetensors"
            ) from error
        weights |= {str(name).replace("midlayer.", "layers.0.", 1): value for name, value in tensors.items()}
    weights = {name: value for name, value in weights.items() if not _SUPERFLUOUS.fullmatch(name)}
    for name, value in weights.items():
        if value.is_floating_point() != (name != "d2t"):
            raise LossyValueError(f"{name!r} in {str(folder)!r} is of the type {value.dtype}; save the head again")
    return weights


def _unpacked(file: Path) -> dict[str, Tensor]:
    """Read a ``.bin`` file; refuse tensors that would take more memory than they have on disk."""
    if is_zipfile(file):
        with ZipFile(file) as packed:
            if any(part.compress_type != ZIP_STORED for part in packed.infolist()):
                raise ValueError("it is compressed")
    tensors = torch.load(file, map_location="cpu", weights_only=True)
    if wrong := [name for name, x in tensors.items() if x.layout != torch.strided or not x.is_contiguous()]:
        raise ValueError(f"{wrong} are not stored whole")
    return tensors
