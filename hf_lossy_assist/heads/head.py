"""Heads: one weight and one bias on hidden states, saved and shared by the Hub's conventions."""

from __future__ import annotations

import copy
import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from huggingface_hub import ModelHubMixin
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..errors import LossyValueError, brief
from . import repository
from .head_config import LIBRARY, HeadConfig, render_card
from .identity import differing_models
from .repository import CONFIG, WEIGHTS

_H = TypeVar("_H", bound="Head")


def fold(mean: ArrayLike | None, scale: ArrayLike | None, weight: ArrayLike, bias: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return ``w = weight / scale`` ``(d,)`` and ``b = bias - w · mean`` ``()`` in float32, computed in float64.

    ``w · h + b`` equals ``weight · (h - mean) / scale + bias``. Arguments are in scikit-learn's shapes: ``mean`` and
    ``scale`` ``(d,)``, or None for 0 and 1; ``weight`` ``(d,)`` or ``(1, d)``, ``bias`` ``()`` or ``(1,)``. A scale of
    0 gives NaN.
    """
    slope, offset = (np.asarray(x, dtype=np.float64) for x in (weight, bias))
    center = np.zeros(slope.shape[-1]) if mean is None else np.asarray(mean, dtype=np.float64)
    spread = np.ones(slope.shape[-1]) if scale is None else np.asarray(scale, dtype=np.float64)
    folded = slope.reshape(spread.shape) / np.where(spread == 0, np.nan, spread)
    moved = offset.reshape(()) - folded @ center
    return torch.tensor(folded).float(), torch.tensor(moved).float()


class Head(nn.Module, ModelHubMixin, library_name=LIBRARY):
    """A probability per token: ``sigmoid(w · h + b)``.

    The folder or repository of a head holds ``config.json``, ``model.safetensors`` and a model card, but no pickle and
    no code.

    Parameters
    ----------
    config
        The states that the head reads, and the models that it belongs to.
    weight, bias
        ``(d,)`` and ``()``; NaN by default, so that an untrained head fails.
    """

    config_class: ClassVar[type[HeadConfig]]

    def __init__(self, config: HeadConfig, weight: Tensor | None = None, bias: Tensor | float | None = None) -> None:
        super().__init__()
        self.config = config
        for name, value in (("weight", weight), ("bias", bias)):
            shape = self._shapes(config)[name]
            tensor = torch.as_tensor(torch.nan if value is None else value, dtype=torch.float32)
            tensor = tensor.expand(shape) if value is None else tensor
            if tuple(tensor.shape) != shape:
                raise LossyValueError(
                    f"`{name}` of a {config.kind} head that reads {config.columns} of these models has to have the "
                    f"shape {shape}, but has {tuple(tensor.shape)}"
                )
            self.register_parameter(name, nn.Parameter(tensor.detach().clone(), requires_grad=False))

    @staticmethod
    def _shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
        return {"weight": (config.width,), "bias": ()}

    @property
    def checksum(self) -> int:
        """A number that identifies the weights, independent of dtype and device."""
        tensors = (self.weight, self.bias)
        return zlib.crc32(b"".join(tensor.detach().float().cpu().numpy().tobytes() for tensor in tensors))

    def logit(self, features: Tensor) -> Tensor:
        """Return ``(...)`` log-odds from features ``(..., d)``, computed in the dtype of the weight."""
        return features.to(self.weight.dtype) @ self.weight + self.bias

    def probability(self, features: Tensor) -> Tensor:
        """Return ``(...)`` probabilities from features ``(..., d)``."""
        return self.logit(features).sigmoid()

    forward = probability

    def check(self, target: nn.Module, draft: nn.Module | None = None) -> None:
        """Raise if the head was trained for other models, naming all differences; a draft of None is not compared."""
        config = self.config
        models = {"target": target} if draft is None else {"target": target, "draft": draft}
        if found := differing_models(vars(config), models):
            raise LossyValueError(
                f"`lossy_head` is a {config.kind} head that was trained for the target {config.target.name!r} and the "
                f"draft {config.draft.name!r}, but {'; '.join(found)}. Use a head that was trained for these models or "
                "train one; for a model that differs in nothing but its name, put `ModelIdentity.of(model)` into the "
                "head's configuration"
            )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> Self:
        """Load a head from a folder or from the Hub; ``Head`` itself loads every kind.

        The source is a folder or an id such as ``"org/name"``, ``revision`` a branch, tag or commit. The other options
        are those of ``huggingface_hub``. A head that is missing, out of reach or damaged raises ``LossyValueError``.
        """
        options = {"token": token, "cache_dir": cache_dir, "force_download": force_download}
        options |= {"revision": revision, "local_files_only": local_files_only}
        folder = repository.local_files(pretrained_model_name_or_path, (CONFIG, WEIGHTS), **options)
        values = repository.read_config(folder)
        given = values.get("type") if isinstance(values, dict) else None
        kinds = Head.__subclasses__() if cls is Head else [cls]
        # `from_dict` refuses a configuration of another kind.
        kind = next((each for each in kinds if each.config_class.kind == given), kinds[0])
        config = kind.config_class.from_dict(values, str(folder / CONFIG))
        return kind(config, **repository.read_weights(folder, kind._shapes(config), values.get("weights_sha256")))

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Write configuration, weights and model card into a folder, as ``ModelHubMixin``; refuse an untrained head.

        The card shows a ``roc.png`` in the folder. With ``push_to_hub=True``, the head is also published.
        """
        if not (self.weight.isfinite().all() and self.bias.isfinite()):
            raise LossyValueError("`weight` and `bias` have to be finite; train the head before saving it")
        return super().save_pretrained(save_directory, **options)

    def _save_pretrained(self, save_directory: Path) -> None:
        digest = repository.write_weights(save_directory, {"weight": self.weight, "bias": self.bias})
        text = json.dumps(self.config.to_dict() | {"weights_sha256": digest}, indent=2, ensure_ascii=False)
        (save_directory / CONFIG).write_text(text + "\n", encoding="utf-8")
        (save_directory / repository.CARD).write_text(render_card(self.config, save_directory), encoding="utf-8")

    def extra_repr(self) -> str:
        """Return the part of ``repr`` about the head."""
        config = self.config
        models = f"target={config.target.name!r}, draft={config.draft.name!r}"
        return f"{config.kind}, {models}, width={config.width}"


def load_head(
    cls: type[_H], source: str | Path, *, device: torch.device | str = "cpu", argument: str = "`lossy_head`"
) -> _H:
    """Load a head from ``"org/name"``, ``"org/name@revision"`` or a folder, or return the cached one.

    A repository is downloaded once per process; a folder is read again when its files change.
    """
    try:
        if (folder := repository.existing_folder(source)) is not None:
            # Modification times serve as revision.
            stamps = tuple(path.stat().st_mtime_ns for name in (CONFIG, WEIGHTS) if (path := folder / name).exists())
            return _load(cls, str(folder.resolve()), None, stamps, torch.device(device))
        if (match := repository.HUB_REFERENCE.fullmatch(str(source))) is not None:
            return _load(cls, match["id"], match["revision"], (), torch.device(device))
    except (LossyValueError, OSError) as error:
        raise LossyValueError(f"{argument} can't be loaded: {error}") from error
    raise LossyValueError(
        f"{argument} is {brief(source)}, which is neither a folder nor an id on the Hub, 'org/name' or "
        "'org/name@revision'"
    )


@lru_cache(maxsize=64)
def _load(cls: type[_H], source: str, revision: str | None, stamps: Any, device: torch.device) -> _H:
    return cls.from_pretrained(source, revision=revision).to(device).eval()


def place_head(argument: str, wanted: type[Head], source: Any, device: torch.device | str) -> Head:
    """Return a head on ``device`` in float32; a name is loaded, and a head elsewhere copied."""
    if isinstance(source, str | Path):
        return load_head(wanted, source, device=device, argument=argument)
    if not isinstance(source, wanted):
        raise LossyValueError(f"{argument} has to be a Hub id, a folder or a {wanted.__name__}, but is {source!r}")
    if not torch.isfinite(source.weight).all() or not torch.isfinite(source.bias):
        raise LossyValueError(f"{argument} has weights that are not finite; train it first")
    same = source.weight.device == torch.device(device) and source.weight.dtype == torch.float32
    return source if same else copy.deepcopy(source).to(device=device, dtype=torch.float32)
