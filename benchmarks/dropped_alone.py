"""``python -m benchmarks.dropped_alone --dropout RATE evaluate …``: answers of one of DropMatch's dropped heads alone.

The paper's table 1 has what each of five heads scores on HumanEval. Head k is the seed k of the dropped entries.
"""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from benchmarks import evaluations
from hf_lossy_assist.evaluation.modes import Models


def dropped_alone(
    context: typer.Context,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="The share of the head's inputs that is dropped.")],
    number: Annotated[int, typer.Option(help="Which head: the seed of what is dropped.")] = 0,
) -> None:
    """Score the target with dropout in its LM head, new at each token."""
    context.obj = lambda models: drop(models, dropout, number)


def drop(models: Models, dropout: float, number: int) -> Models:
    """Drop entries of all that the target's LM head reads from now on, as the rule does."""
    generator = torch.Generator(models.target.device).manual_seed(number)

    def dropped(head: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        mask = torch.rand(inputs[0].shape, generator=generator, device=inputs[0].device) >= dropout
        return (inputs[0] * mask.to(inputs[0].dtype) / (1 - dropout),)

    models.target.get_output_embeddings().register_forward_pre_hook(dropped)
    return models


app = evaluations(dropped_alone)

if __name__ == "__main__":
    app()
