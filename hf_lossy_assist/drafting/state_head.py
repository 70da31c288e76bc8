"""Heads that draft from a target's own states: what all share, and what those with files of their own do."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self
from zipfile import ZIP_STORED, ZipFile, is_zipfile

import torch
from huggingface_hub import ModelCardData
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from ..errors import LossyValueError
from ..heads.repository import CARD, CONFIG, WEIGHTS, local_files, read_config
from ..store.folder import writing
from .state_config import StateHeadConfig
from .vocabulary import DraftVocabulary, SameVocabulary, Vocabulary, vocabulary_sizes


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
        weight = target.get_input_embeddings().weight
        if weight.shape[1] != self.width or weight.is_meta:
            raise LossyValueError(
                f"`assistant_model` is {self.title} without embeddings, which uses the target's, but these "
                f"{'are not in memory' if weight.is_meta else f'have the width {weight.shape[1]}'}, and it reads width "
                f"{self.width}; pass a head with embeddings of its own"
            )
        return weight

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
        return SameVocabulary() if self.d2t is None else DraftVocabulary(self.target_ids, *vocabulary_sizes(target))

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
