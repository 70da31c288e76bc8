"""Heads that draft from a target's own states: what all share, and what those with files of their own do."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self
from zipfile import ZIP_STORED, ZipFile, is_zipfile

import torch
from huggingface_hub import ModelCardData
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AutoConfig, DynamicCache, PretrainedConfig, PreTrainedModel

from ..compat.models import versions_of
from ..errors import LossyUnsupportedError, LossyValueError, brief
from ..heads.repository import CARD, CONFIG, WEIGHTS, local_files, read_config
from ..store.folder import writing
from ..values import SIZE, TEXT, Rule, bounded, or_none
from .vocabulary import MOST_PADDING, SAME, DraftVocabulary, Vocabulary, vocabulary_sizes

_OF_THE_HEAD = {
    "architectures", "draft_vocab_size", "target_hidden_size", "eagle_config", "dflash_config", "auto_map", "dtype",
    "torch_dtype",
}  # fmt: skip
LAYER_TYPES = ("llama", "qwen3")
"""Kinds of decoder layers that a head can have."""
or_null = partial(or_none, none="null")


def list_of(kind: type, items: str) -> Rule:
    return Rule(f"a list of {items}", lambda x: isinstance(x, list) and all(type(y) is kind for y in x))


LAYERS = or_null(list_of(int, "numbers of layers"))
_OBJECT = Rule("an object", lambda x: isinstance(x, Mapping))
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"), SIZE),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "draft_vocab_size", "target_hidden_size"), or_null(SIZE)),
    **dict.fromkeys(("eagle_config", "speculators_config", "rope_scaling", "verifier"), or_null(_OBJECT)),
    **dict.fromkeys(("transformer_layer_config", "dflash_config"), _OBJECT),
    "num_hidden_layers": bounded(1, 64, integer=True),
    "name_or_path": or_null(TEXT),
    "architectures": or_null(list_of(str, "strings")),
}
"""What values of a ``config.json`` have to be, wherever they stand in it; transformers checks the other ones."""


@dataclass(frozen=True, eq=False)
class StateHeadConfig:
    """The shape of a head that reads a target's states, and the target that it is for."""

    title: ClassVar[str]  # what errors call the head, with an article
    model_type: ClassVar[str]  # speculators' name of the kind
    names: ClassVar[tuple[Any, ...]]  # all names of the kind in files
    writers: ClassVar[str]  # who writes such files
    rules: ClassVar[Mapping[str, Rule]]  # what its own values have to be
    layer: PretrainedConfig  # its decoder layers': kind, sizes, rotary positions; `vocab_size` is the target's
    draft_vocab_size: int  # how many tokens it can draft
    target_hidden_size: int  # the width of the target's states
    # The states that it reads, numbered as in the target's `hidden_states`: i enters layer i, and the last leaves them
    # all, before the norm. None for the usual three, which depend on the target's depth.
    target_layers: tuple[int, ...] | None = None
    target_name: str | None = None  # the model that it was trained for, if the checkpoint names it
    target_architectures: tuple[str, ...] = ()

    def get_text_config(self, decoder: bool = True) -> PretrainedConfig:
        """Return the decoder layers' configuration, which holds a model's sizes."""
        return self.layer

    @property
    def layers_read(self) -> int:
        return 3 if self.target_layers is None else len(self.target_layers)

    def layers_of(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Return which of a target's ``hidden_states`` it reads."""
        if self.target_layers is not None:
            return self.target_layers
        depth = target.config.get_text_config(decoder=True).num_hidden_layers
        return 2, depth // 2, depth - 3

    def check(self, target: PreTrainedModel) -> None:
        """Refuse a target that the head does not fit, with everything that differs."""
        if target.config.is_encoder_decoder:
            raise LossyUnsupportedError(
                f"`assistant_model` is {self.title}, which can't draft for a {type(target).__name__}, an "
                "encoder-decoder model; pass a draft model"
            )
        config = target.config.get_text_config(decoder=True)
        layers, found = self.layers_of(target), []
        if config.hidden_size != self.target_hidden_size:
            found.append(f"states of width {self.target_hidden_size}, and the target's have {config.hidden_size}")
        if len(set(layers)) < len(layers) or min(layers) < 0 or max(layers) > config.num_hidden_layers:
            found.append(f"the states {list(layers)}, and the target has {config.num_hidden_layers} layers")
        if abs(config.vocab_size - self.layer.vocab_size) > MOST_PADDING:
            found.append(f"{self.layer.vocab_size} tokens, and the target has {config.vocab_size}")
        if found:
            trained = f" {self.target_name!r}" if self.target_name else " another model"
            raise LossyValueError(
                f"`assistant_model` is {self.title} trained for{trained}: it reads {'; it reads '.join(found)}. "
                "Pass a head that was trained for this target"
            )

    @classmethod
    def describes(cls, values: Mapping[str, Any]) -> bool:
        """Tell whether a ``config.json`` is that of such a head, in any of the formats."""
        return kind_of(values) in cls.names

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a ``config.json`` in any of the formats."""
        values = values if isinstance(values, Mapping) else {}
        if not cls.describes(values):
            raise LossyValueError(
                f"{brief(kind_of(values))} is no {cls.title.partition(' ')[2]} as {cls.writers} write it; pass the "
                "folder or repository of such a head, or use the model as an ordinary `assistant_model`"
            )
        return cls._read(values)

    @classmethod
    @abstractmethod
    def _read(cls, values: Mapping[str, Any]) -> Self:
        """Read a ``config.json`` of this kind."""

    @classmethod
    def check_values(cls, values: Mapping[str, Any], needed: tuple[str, ...]) -> None:
        """Refuse missing values, and those of another type or size, before anything is made of them."""
        for name, value in values.items():
            if (rule := cls.rules.get(name) or _RULES.get(name)) is not None:
                rule.check(name, value, f" of {cls.title}'s configuration")
                if isinstance(value, Mapping):
                    cls.check_values(value, ())
        if missing := [name for name in needed if name not in values]:
            raise LossyValueError(f"the configuration of {cls.title} lacks {missing}; save or download it again")

    @classmethod
    def of_speculators(cls, values: Mapping[str, Any], layers: str, **own: Any) -> Self:
        """Read what every head in the format of speculators has; ``layers`` is where the states' numbers stand."""
        kind = values["transformer_layer_config"].get("model_type", "qwen3")
        if kind not in LAYER_TYPES:
            raise LossyUnsupportedError(
                f"{cls.title} has to have layers of {list(LAYER_TYPES)}, not {brief(kind)}; pass another head"
            )
        layer = cls.layer_config(type(AutoConfig.for_model(kind)), values["transformer_layer_config"])
        verifier = (values.get("speculators_config") or {}).get("verifier") or {}
        return cls(
            layer=layer,
            draft_vocab_size=values["draft_vocab_size"] or layer.vocab_size,
            target_hidden_size=values.get("target_hidden_size") or layer.hidden_size,
            target_layers=None if values.get(layers) is None else tuple(values[layers]),
            target_name=verifier.get("name_or_path"),
            target_architectures=tuple(verifier.get("architectures") or ()),
            **own,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a ``config.json`` as speculators writes it, without what one kind alone has."""
        proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
        layer = {name: value for name, value in self.layer.to_diff_dict().items() if not name.startswith("_")}
        width = self.target_hidden_size
        return {
            "speculators_model_type": self.model_type,
            "speculators_version": "0.9.0",
            "speculators_config": {
                "algorithm": self.model_type,
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": self.target_name, "architectures": list(self.target_architectures)},
            },
            "transformer_layer_config": layer,
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": None if width == self.layer.hidden_size else width,
            **{f"{name}_version": version for name, version in versions_of("transformers").items()},
        }

    @classmethod
    def layer_config(cls, kind: type[PretrainedConfig], values: Mapping[str, Any]) -> PretrainedConfig:
        """Return the configuration of the layers of a ``kind`` among ``values``."""
        others = _OF_THE_HEAD | cls.rules.keys()
        try:
            config = kind.from_dict({name: value for name, value in values.items() if name not in others})
            heads = config.num_attention_heads
            if heads % (config.num_key_value_heads or heads) or (config.head_dim or 2) % 2:
                raise ValueError(
                    f"`num_key_value_heads` {config.num_key_value_heads} has to divide `num_attention_heads` {heads}, "
                    f"and `head_dim` {config.head_dim} has to be even"
                )
        except Exception as error:  # of whatever kind: transformers checks by means of its own
            raise LossyValueError(f"the layer in {cls.title}'s configuration is refused: {error}") from error
        return config


def kind_of(values: Mapping[str, Any]) -> Any:
    """Return speculators' name of what a ``config.json`` is of, or the name of its class."""
    named = values.get("architectures")
    return values.get("speculators_model_type") or (named[0] if isinstance(named, list) and named else "none")


class StateHead(nn.Module, ABC):
    """Drafts from states of the target's layers; its class says what its forwards read."""

    title: str  # in errors, after "`assistant_model` is"
    width: int  # of the embeddings that it reads
    fc: nn.Linear  # fuses what it reads
    # How many tokens a draft can have, where one forward drafts it as a block; None where it drafts token by token,
    # any number of tokens or a tree.
    longest: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    def get_decoder(self) -> Self:
        """Return itself: callers that time a model's forwards watch its decoder."""
        return self

    @abstractmethod
    def check(self, target: PreTrainedModel) -> None:
        """Raise unless it can draft for ``target``; the error says what differs."""

    @abstractmethod
    def layers_of(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Return which of a target's states it reads.

        i is the state that enters layer i, and n = ``num_hidden_layers`` what leaves the last; n + 1 is that, normed.
        """

    @abstractmethod
    def vocabulary(self, target: PreTrainedModel) -> Vocabulary:
        """Return how to translate its tokens to the target's."""

    def embeddings(self, target: PreTrainedModel) -> Tensor:
        """Return the embeddings ``(V, d)`` that it reads: the target's, as they are stored."""
        weight = getattr(target.get_input_embeddings(), "weight", None)
        if weight is None:
            wrong = "are no single table"
        elif weight.is_meta:
            wrong = "are not in memory"
        elif weight.shape[1] != self.width:
            wrong = f"have the width {weight.shape[1]}"
        else:
            return weight
        raise LossyValueError(
            f"`assistant_model` is {self.title} without embeddings, which uses the target's, but these {wrong}, and it "
            f"reads width {self.width}; pass a head with embeddings of its own"
        )

    @abstractmethod
    def new_cache(self) -> DynamicCache:
        """Return an empty cache for its layers."""

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """Return ``(B, L, d)`` what the layers read, from the target's states side by side."""


def embedded(ids: Tensor, embeddings: Tensor, device: torch.device) -> Tensor:
    """Return the embeddings of tokens, on the head's ``device``; a target's newest tokens may have none."""
    ids = ids.to(embeddings.device)
    return embedding(ids.masked_fill(ids >= len(embeddings), 0), embeddings).to(device)


class StoredHead(StateHead):
    """Drafts from states of the target's layers; pass it as ``assistant_model`` to ``generate()``.

    Parameters
    ----------
    config
        Shape and conventions.
    """

    config_class: ClassVar[type[StateHeadConfig]]
    files: ClassVar[tuple[str, ...]] = ("*.safetensors",)  # that may hold its weights; the first kind that is there
    renamed: ClassVar[dict[str, str]]  # how names begin in other tools' checkpoints, and how they do here
    left_out: ClassVar[re.Pattern[str]]  # tensors that follow from others, or from the target
    embed_tokens: nn.Embedding | None
    d2t: Tensor | None  # what to add to a token's number among those drafted; None where all can be drafted

    def __init__(self, config: StateHeadConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.layer.hidden_size
        self.embed_tokens = None
        values = {name: value for name, value in config.layer.to_dict().items() if name != "model_type"}
        self._inner = type(config.layer)(**values, attn_implementation="sdpa")

    @property
    def title(self) -> str:
        return self.config.title

    @property
    def target_ids(self) -> Tensor:
        """``(V_draft,)`` the target's tokens that it can draft."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def check(self, target: PreTrainedModel) -> None:
        self.config.check(target)
        (size,) = vocabulary_sizes(target)
        ids = () if self.d2t is None else self.target_ids.aminmax()
        if wrong := [int(x) for x in ids if not 0 <= x < size]:
            raise LossyValueError(
                f"`assistant_model` is {self.title} that drafts the token {wrong[0]}, but the target has "
                f"{size}; pass a head that was trained for this target"
            )
        self.embeddings(target)

    def layers_of(self, target: PreTrainedModel) -> tuple[int, ...]:
        return self.config.layers_of(target)

    def vocabulary(self, target: PreTrainedModel) -> Vocabulary:
        return SAME if self.d2t is None else DraftVocabulary(self.target_ids, *vocabulary_sizes(target))

    def embeddings(self, target: PreTrainedModel) -> Tensor:
        """Return the embeddings ``(V, d)`` that it reads: its own, or the target's as they are stored."""
        return super().embeddings(target) if self.embed_tokens is None else self.embed_tokens.weight

    @classmethod
    def _blank(cls, config: StateHeadConfig, weights: dict[str, Tensor]) -> Self:
        """Return a head of any weights, with the shapes of ``weights``, to which it may add what follows from these."""
        return cls(config)

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
        """Load a head from a folder or the Hub, in any of the published formats. Nothing in it is executed.

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
        folder = local_files(pretrained_model_name_or_path, (CONFIG, *cls.files), revision=revision, **download)
        config = cls.config_class.from_dict(read_config(folder))
        weights = cls._weights(folder)
        try:
            with torch.device("meta"):  # a configuration may ask for any size
                blank = cls._blank(config, weights)
        except Exception as error:  # of whatever kind: transformers makes the layer
            raise LossyValueError(
                f"the layer of {config.title} in {str(folder)!r} can't be made, perhaps because of its `hidden_act`, "
                f"`rope_parameters`, `rope_scaling` or `rope_theta`: {error!r}"
            ) from error
        try:
            blank.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise LossyValueError(
                f"{config.title} in {str(folder)!r} has other weights than its {CONFIG} says: {error}; pass another "
                "head, or download it again"
            ) from error
        head = cls._blank(config, weights)
        head.load_state_dict(weights)
        return head.to(dtype or weights["fc.weight"].dtype).eval()

    @classmethod
    def _weights(cls, folder: Path) -> dict[str, Tensor]:
        """Return a checkpoint's tensors under the names that they have here."""
        files = next((found for kind in cls.files if (found := sorted(folder.glob(kind)))), None)
        if files is None:
            raise LossyValueError(
                f"{str(folder)!r} has no weights of {cls.config_class.title}, no file like {' or '.join(cls.files)}"
            )
        weights: dict[str, Tensor] = {}
        for file in files:
            try:
                tensors = load_file(file) if file.suffix == ".safetensors" else _unpacked(file)
            except Exception as error:  # of whatever kind: the file is somebody else's
                raise LossyValueError(
                    f"{str(file)!r} is cut short, or holds more than tensors and is not executed ({error!r}); save or "
                    "download the head again, best as safetensors"
                ) from error
            for name, value in tensors.items():
                old = next((x for x in cls.renamed if str(name).startswith(x)), "")
                weights[cls.renamed.get(old, "") + str(name).removeprefix(old)] = value
        weights = {name: value for name, value in weights.items() if not cls.left_out.fullmatch(name)}
        for name, value in weights.items():
            if value.is_floating_point() != (name != "d2t"):
                raise LossyValueError(f"{name!r} in {str(folder)!r} is of the type {value.dtype}; save the head again")
        return weights

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write configuration, weights and a model card into a folder, in the format of speculators and vLLM."""
        folder = Path(save_directory)
        weights = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        if "d2t" in weights:
            weights["t2d"] = torch.zeros(self.config.layer.vocab_size, dtype=torch.bool)
            weights["t2d"][self.target_ids.cpu()] = True
        values = self.config.to_dict() | {"dtype": str(self.dtype).removeprefix("torch.")}
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
            (folder / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
            (folder / CARD).write_text(self._card(), encoding="utf-8")

    def _card(self) -> str:
        config = self.config
        target = config.target_name or "its target"
        data = ModelCardData(
            library_name="hf_lossy_assist",
            tags=["hf_lossy_assist", "speculative-decoding", config.model_type, "speculators"],
            base_model=config.target_name,
        )
        read = "the usual three" if config.target_layers is None else ", ".join(map(str, config.target_layers))
        card = Path(inspect.getfile(type(self))).with_name(f"{config.model_type}_card.md")
        return card.read_text(encoding="utf-8").format(
            metadata=data.to_yaml(), target=target, parameters=f"{sum(p.numel() for p in self.parameters()):,}",
            layers=read, drafted=f"{config.draft_vocab_size:,}", vocabulary=f"{config.layer.vocab_size:,}",
            longest=self.longest,
        )  # fmt: skip


def parts_of(layer: PretrainedConfig) -> list[type[nn.Module]]:
    """Return the classes of transformers for a kind of layer, its norms, and its rotary positions."""
    kind = layer.model_type
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    return [getattr(module, kind.capitalize() + name) for name in ("DecoderLayer", "RMSNorm", "RotaryEmbedding")]


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
