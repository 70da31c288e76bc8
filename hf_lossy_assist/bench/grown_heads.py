"""Judge and verifier heads for grown models."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from ..heads import Head, ModelIdentity

H = TypeVar("H", bound=Head)


def grow_head(head: H, target: PreTrainedModel, draft: PreTrainedModel) -> H:
    """Return a head that says of grown models what ``head`` says of the models they were grown from.

    A grown model's hidden state begins with the small model's own, so the weight is extended by zeros.

    Parameters
    ----------
    head
        A head of the models before they grew; it is left as it is.
    target, draft
        The models at hand, one or both of them grown.
    """
    sizes = {"target": target.config.hidden_size, "draft": draft.config.hidden_size}
    read = {"target": head.config.target.hidden_size, "draft": head.config.draft.hidden_size}
    # A verifier reads one state of the draft; a judge's columns begin with the model's role.
    owners = [column.split("_")[0] for column in getattr(head.config, "columns", ("draft",))]
    parts = head.weight.split([read[owner] for owner in owners])
    padded = [
        torch.nn.functional.pad(part, (0, sizes[owner] - len(part))) for owner, part in zip(owners, parts, strict=True)
    ]
    identities = {"target": ModelIdentity.of(target), "draft": ModelIdentity.of(draft)}
    return type(head)(dataclasses.replace(head.config, **identities), torch.cat(padded), head.bias)
