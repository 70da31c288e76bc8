"""Heads: one weight and one bias on hidden states, saved and shared by the Hub's conventions."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from huggingface_hub import ModelHubMixin
from torch import Tensor, nn
from typing_extensions import Self

from ..errors import LossyValueError
from . import head_cards
from .head_config import LIBRARY, HeadConfig
from .hub import CARD, upload
from .repository import CONFIG, local_files, publication, read_config, read_weights, write_weights


class Head(nn.Module, ModelHubMixin, library_name=LIBRARY):
    """A probability per token: ``sigmoid(w · h + b)``, one dot product.

    A folder or repository of a head holds ``config.json``, ``model.safetensors`` and a model card. Nothing in it is
    ever executed: there is no pickle and no code.

    Parameters
    ----------
    config
        What the head reads and which models it belongs to.
    weight, bias
        ``(d,)`` and ``()``; NaN where they aren't given, so that a head that was never trained can't be used unnoticed.
    """

    config_class: ClassVar[type[HeadConfig]]

    def __init__(self, config: HeadConfig, weight: Tensor | None = None, bias: Tensor | float | None = None) -> None:
        super().__init__()
        self.config = config
        for name, value in (("weight", weight), ("bias", bias)):
            shape = self._shapes(config)[name]
            tensor = torch.full(shape, torch.nan) if value is None else torch.as_tensor(value, dtype=torch.float32)
            if tuple(tensor.shape) != shape:
                raise LossyValueError(
                    f"`{name}` of a {config.kind} head for these models has to have the shape {shape}, but has "
                    f"{tuple(tensor.shape)}"
                )
            self.register_parameter(name, nn.Parameter(tensor.detach().clone(), requires_grad=False))

    @staticmethod
    def _shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
        return {"weight": (config.width,), "bias": ()}

    @property
    def checksum(self) -> int:
        """A number by which the weights are told from others, whatever their dtype and device."""
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
        """Refuse other models than those that the head was trained for; a draft that is None is not compared.

        Raises
        ------
        LossyValueError
            With everything that differs.
        """
        found = [f"of the target {difference}" for difference in self.config.target.differences(target)]
        if draft is not None:
            found += [f"of the draft {difference}" for difference in self.config.draft.differences(draft)]
        if found:
            raise LossyValueError(
                f"this {self.config.kind} head was trained for the target {self.config.target.name!r} and the draft "
                f"{self.config.draft.name!r}, but {'; '.join(found)}. Use a head that was trained for these models "
                "or train one; for a model that is the same in all but its name, put `ModelIdentity.of(model)` into "
                "the head's configuration"
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
        """Load a head from a folder or from the Hub, where its files are cached.

        Parameters
        ----------
        pretrained_model_name_or_path
            A folder, or an id such as ``"org/name"``.
        revision
            Branch, tag or commit on the Hub.
        token, cache_dir, force_download, local_files_only
            As everywhere in ``huggingface_hub``.

        Raises
        ------
        LossyValueError
            When there is no such head, it can't be reached, or any of its files is damaged.
        """
        folder = local_files(
            pretrained_model_name_or_path,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
        )
        values = read_config(folder)
        config = cls.config_class.from_dict(values, str(folder / CONFIG))
        return cls(config, **read_weights(folder, cls._shapes(config), values.get("weights_sha256")))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        branch: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Commit configuration, weights and card to the Hub; the repository is created where it does not exist.

        Figures lie in a head's folder rather than in the head, so ``lossy-assist publish FOLDER`` sends them, too.

        Parameters
        ----------
        repo_id
            ``"org/name"``.
        private, token, branch, create_pr
            As everywhere in ``huggingface_hub``.

        Returns
        -------
        str
            The address of the commit.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            files = publication(Path(folder), f"{self.config.kind} head")
            return upload(files, repo_id, private=private, revision=branch, token=token, create_pr=create_pr)

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write configuration, weights and model card into a folder; a head that was never trained is refused.

        The card follows from the configuration, and replaces an earlier one.

        Parameters
        ----------
        save_directory
            The folder, made if need be. A ``roc.png`` that is already in it is shown in the card.
        repo_id, push_to_hub, push_to_hub_kwargs
            As everywhere in ``huggingface_hub``: :meth:`push_to_hub`, under the folder's name by default.

        Returns
        -------
        str or None
            The address of the commit, if there was one.
        """
        if not (self.weight.isfinite().all() and self.bias.isfinite()):
            raise LossyValueError("`weight` and `bias` have to be finite; a head that was never trained can't be saved")
        super().save_pretrained(save_directory)
        if not push_to_hub:
            return None
        return self.push_to_hub(repo_id or Path(save_directory).name, **push_to_hub_kwargs)

    def _save_pretrained(self, save_directory: Path) -> None:
        digest = write_weights(save_directory, {"weight": self.weight, "bias": self.bias})
        text = json.dumps(self.config.to_dict() | {"weights_sha256": digest}, indent=2, ensure_ascii=False)
        (save_directory / CONFIG).write_text(text + "\n", encoding="utf-8")
        (save_directory / CARD).write_text(head_cards.render(self.config, save_directory), encoding="utf-8")

    def extra_repr(self) -> str:
        """Return what ``repr`` says of the head."""
        config = self.config
        return f"{config.kind}, target={config.target.name!r}, draft={config.draft.name!r}, width={config.width}"
