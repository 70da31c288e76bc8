"""Which families with recurrent states decode losslessly, and how: ``python -m benchmarks.families``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from hf_lossy_assist import enable
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.compat import has_recurrent_state, obstacle_to_rollback
from tests.families import CONFIGS, family, has_family
from tests.tiny_models import noisy_copy, padded

from . import command

COLUMNS = ("family", "state", "as a target", "as a draft", "equal to plain", "tokens per round", "accepted")


@dataclass(frozen=True)
class FamilyRow:
    """What one family does.

    Attributes
    ----------
    family, state
        Its name, and what becomes of its state when tokens are rejected.
    target, draft
        Whether it can be one, or why not.
    equal
        Whether greedy texts of a padded batch are those of plain ``generate()``, token for token.
    tokens_per_round, accepted
        With a draft that is the target with noise on its weights.
    """

    family: str
    state: str
    target: str
    draft: str
    equal: str = ""
    tokens_per_round: str = ""
    accepted: str = ""


def row_of(name: str, gamma: int, length: int) -> FamilyRow:
    """Decode a padded batch with a tiny random model of a family, alone and with a noisy copy as draft."""
    model = family(name)
    enable(model)
    refusals = [obstacle_to_rollback(model, several=several) for several in (True, False)]
    uses = [refusal is None for refusal in refusals]
    if uses[0]:
        state = "saved, replayed" if has_recurrent_state(model) else "cropped"
    else:
        state = "saved, read one by one" if uses[1] else "-"
    told = ["yes" if refusal is None else f"no: {refusal.partition(' keeps ')[2]}" for refusal in refusals]
    return FamilyRow(name, state, *told, *(_decoded(model, gamma, length) if uses[0] else ()))


def _decoded(model: PreTrainedModel, gamma: int, length: int) -> tuple[str, str, str]:
    greedy = {"do_sample": False, "eos_token_id": None, "max_new_tokens": length, "return_dict_in_generate": True}
    inputs = padded((4, 9))
    plain = model.generate(**inputs, **greedy)
    ours = model.generate(
        **inputs, **greedy, assistant_model=noisy_copy(model, 0.003), num_assistant_tokens=gamma, lossy_mode="lossless",
    )  # fmt: skip
    stats = ours.lossy_stats
    equal = "yes" if ours.sequences.equal(plain.sequences) else "no"
    return equal, f"{stats.tokens_per_round:.2f}", f"{stats.acceptance_rate:.0%}"


def main(
    gamma: Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of each text.")] = 24,
    only: Annotated[str | None, typer.Option(help="Families, separated by commas; all by default.")] = None,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table to this file, as Markdown.")] = None,
) -> None:
    """Tabulate tiny random models of every family that keeps a state, in float32."""
    limit_threads(threads)
    transformers.logging.set_verbosity_error()
    names = [name for name in (only.split(",") if only else CONFIGS) if has_family(name)]
    screen = Console()
    with progress(screen) as bar, torch.no_grad():
        rows = [row_of(name, gamma, max_new_tokens) for name in bar.track(names, description="families")]
    table = Table(*COLUMNS, title=f"transformers {transformers.__version__}, γ = {gamma}, two padded rows")
    for row in rows:
        table.add_row(*asdict(row).values())
    screen.print(table)
    if out is not None:
        out.write_text(_markdown(rows, gamma), encoding="utf-8")


def _markdown(rows: list[FamilyRow], gamma: int) -> str:
    head = (
        f"Tiny random models in float32, transformers {transformers.__version__}, γ = {gamma}, two padded rows; "
        "the draft is the target with noise on its weights. Written by `python -m benchmarks.families --out FILE`."
    )
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(tuple(asdict(row).values()) for row in rows)]
    return "\n".join([head, "", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


app = command(main)

if __name__ == "__main__":
    app()
