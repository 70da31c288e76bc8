"""``lossy-assist import-autojudge``: convert a head that AutoJudge's own code has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..heads.autojudge import DEFAULT_THRESHOLD, import_head
from .models import identity_of


def import_autojudge(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file that AutoJudge's training wrote.")],
    out: Annotated[Path, typer.Option(help="The new head's folder.")],
    model: Annotated[str, typer.Option(help="The target it was trained for: a folder or an id on the Hub.")],
    assistant: Annotated[str, typer.Option(help="The draft it was trained for.")],
    task: Annotated[str, typer.Option(help="The task it was trained on, for the card.")] = "unknown",
    threshold: Annotated[float, typer.Option(help="Tokens below this probability are kept.")] = DEFAULT_THRESHOLD,
    fold: Annotated[int | None, typer.Option(min=0, help="The fold, in a file with a head per fold.")] = None,
) -> None:
    """Import a head in AutoJudge's published layout: a pickle of scikit-learn objects or of arrays.

    The file is read without running anything in it. Only the models' configurations are loaded.
    """
    target, draft = identity_of("--model", model), identity_of("--assistant", assistant)
    head = import_head(file, target, draft, task=task, threshold=threshold, part=fold)
    head.save_pretrained(out)
    screen = Console()
    screen.print(f"{out}: {head.config.width} weights, reads {head.config.reads}", markup=False, highlight=False)
    if published := head.config.provenance["published_thresholds"]:
        listed = ", ".join(f"{value:.3g}" for value in published)
        screen.print(f"Thresholds in the file: {listed}", markup=False, highlight=False)
    screen.print(f"The head has {threshold:g}; `lossy_config={{'threshold': …}}` overrides it.", markup=False)
