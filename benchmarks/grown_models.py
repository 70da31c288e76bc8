"""Modes on a pair padded to the sizes of large models: ``python -m benchmarks.grown_models --grow llama-8b``.

The grown target computes the same function: the cost is a large model's, and every decision a real one.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, TypeVar

import torch
import typer
from transformers import PreTrainedModel

from hf_lossy_assist import JudgeHead, VerifierHead
from hf_lossy_assist.pairs import Pair

from . import Data, Device, Dtype, Int8, Limit, MaxNew, Modes, Out, PairName, Task, command, measured
from .growing.geometry import Geometry, parse_geometry
from .growing.grow import MIN_RESERVED, grow

H = TypeVar("H", JudgeHead, VerifierHead)


def main(
    grow: Annotated[
        str | None,
        typer.Option(help="Pad the target to llama-1b, -3b, -8b, -70b, or sizes: layers=12,hidden=1024,heads=16."),
    ] = None,
    grow_draft: Annotated[str | None, typer.Option(help="The same for the draft.")] = None,
    pair: PairName = "arithmetic",
    modes: Modes = "plain,lossless",
    limit: Limit = 4,
    task: Task = None,
    data: Data = None,
    max_new_tokens: MaxNew = None,
    int8: Int8 = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    out: Out = None,
) -> None:
    """Evaluate modes on models that are padded to larger sizes, where they compute the same function."""
    target, draft = (
        Geometry() if text is None else parse_geometry(text, option)
        for option, text in (("--grow", grow), ("--grow-draft", grow_draft))
    )

    def change(loaded: Pair) -> Pair:
        return grow_models(loaded, target, draft)

    typer.echo(measured(change, pair, modes, limit, task, data, max_new_tokens, int8, device, dtype, out))


def grow_models(models: Pair, target: Geometry, draft: Geometry) -> Pair:
    """Return the models in other geometries; heads grow along, and a draft to the target's vocabulary."""
    if target == draft == Geometry():
        return models
    large = _grown(models.target, target)
    vocab = large.config.vocab_size
    if draft.vocab is None and vocab != models.draft.config.vocab_size:
        draft = _room_for(vocab, draft, models.draft)
    small = _grown(models.draft, draft)
    heads = {name: grow_head(head, large, small) for name, head in models.heads.items()}
    return dataclasses.replace(models, target=large, draft=small, heads=heads)


def _grown(model: PreTrainedModel, wanted: Geometry) -> PreTrainedModel:
    return model if wanted == Geometry() else grow(model, wanted)


def _room_for(vocab: int, wanted: Geometry, draft: PreTrainedModel) -> Geometry:
    """Give a draft the target's vocabulary, and the few hidden dimensions that padding it needs."""
    own = Geometry.of(draft.config)
    heads = wanted.heads or own.heads
    hidden = wanted.hidden or -(-(own.hidden + MIN_RESERVED) // heads) * heads
    return dataclasses.replace(wanted, vocab=vocab, hidden=hidden, head_dim=wanted.head_dim or own.head_dim)


def grow_head(head: H, target: PreTrainedModel, draft: PreTrainedModel) -> H:
    """Return a head whose scores of grown models are those of ``head`` for the models before they grew.

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
    kind = type(head.config.target)
    identities = {"target": kind.of(target), "draft": kind.of(draft)}
    return type(head)(dataclasses.replace(head.config, **identities), torch.cat(padded), head.bias)


app = command(main)

if __name__ == "__main__":
    app()
