"""``python -m benchmarks.block_verification``: how much more of a drawn draft stays if it is decided as a whole."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated
from unittest.mock import patch

import typer
from rich.console import Console
from scipy.stats import t as student
from torch import Tensor

from benchmarks import command
from hf_lossy_assist.acceptors import Acceptor, Lossless
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import DraftSource, PairName, PromptFile, RowsFile, Threads, numbers
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import PromptBatch, batches_of, run_request
from hf_lossy_assist.evaluation.tables import number, percent, table


@dataclass(frozen=True)
class Gain:
    """Drafted tokens kept per round at one temperature and γ: means over texts, one observation each.

    Attributes
    ----------
    token, block
        Expected numbers, judged token by token and decided as wholes, over the same drafts of the same rounds.
    gain, low, high
        Their mean difference, and its interval of 95 %.
    """

    temperature: float
    gamma: int
    texts: int
    rounds: int
    token: float
    block: float
    gain: float
    low: float
    high: float


Noted = list[tuple[float, float]]
"""How much of each draft is kept on average, token by token and as a whole."""


@contextmanager
def watched() -> Iterator[Noted]:
    """Note every draft that the lossless rule decides as a whole inside the block."""
    noted: Noted = []
    choose = Lossless.alone

    def alone(self: Lossless, v: Verification) -> Acceptor:
        rule = choose(self, v)
        if len(v):
            noted.append((expected_token(v).item(), expected_block(v, rule.quantities(v)["h"]).item()))
        return rule

    with patch.object(Lossless, "alone", alone):
        yield noted


def expected_token(v: Verification) -> Tensor:
    """Return how many tokens of each draft ``(B,)`` are kept on average, judged one by one."""
    return v.ratio.clamp(max=1).cumprod(-1).sum(-1)


def expected_block(v: Verification, thresholds: Tensor) -> Tensor:
    """Return how many tokens of each draft ``(B,)`` are kept on average, decided as a whole.

    Token i stays unless all ``uⱼ >= hⱼ`` for j from i on.
    """
    return (1 - (1 - thresholds).flip(-1).cumprod(-1)).sum(-1)


def measure(
    models: Models,
    prompts: Sequence[PromptBatch],
    temperature: float,
    gamma: int,
    max_new_tokens: int,
    on_text: Callable[[], None] = lambda: None,
) -> Gain:
    """Draw one text for each prompt, and compare what is kept of its drafts on average.

    A batch of ``prompts`` has one prompt.
    """
    mode = DecodingMode("block", "lossless", {"verification": "block"}, gamma, temperature)
    token, block, rounds = [], [], 0
    for prompt in prompts:
        with watched() as noted:
            run_request(models, mode, prompt, max_new_tokens)
        of_token, of_block = zip(*noted, strict=True)
        token.append(statistics.mean(of_token))
        block.append(statistics.mean(of_block))
        rounds += len(of_token)
        on_text()
    gains = [b - a for a, b in zip(token, block, strict=True)]
    gain = statistics.mean(gains)
    margin = student.ppf(0.975, len(gains) - 1) * statistics.stdev(gains) / len(gains) ** 0.5
    means = statistics.mean(token), statistics.mean(block)
    return Gain(temperature, gamma, len(gains), rounds, *means, gain, gain - margin, gain + margin)


def main(
    pair: PairName = "arithmetic",
    assistant: DraftSource = None,
    prompt_file: PromptFile = None,
    temperatures: Annotated[str, typer.Option(help="Temperatures of the draws, separated by commas.")] = "0.8,1.0",
    gammas: Annotated[str, typer.Option(help="Drafted tokens per round, separated by commas.")] = "5,8",
    prompts: Annotated[int, typer.Option(min=2, help="Number of texts.")] = 100,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a text.")] = 100,
    threads: Threads = None,
    out: RowsFile = None,
) -> None:
    """Compare drafted tokens kept per round: decided as wholes, and token by token, over the same drafts."""
    limit_threads(threads)
    loaded, screen = ModelOptions(pair, assistant=assistant, device="cpu").load(), Console()
    loaded = loaded.asked("--prompt-file", prompt_file)
    batches = batches_of(loaded.encode(loaded.examples(prompts)))
    cells = [(t, g) for t in numbers("--temperatures", temperatures, float) for g in numbers("--gammas", gammas, int)]
    rows = []
    with progress(screen) as bar, records.written(out, records.provenance("cpu", prompts=len(batches))) as write:
        task = bar.add_task("drawing", total=len(cells) * len(batches))
        for cell in cells:
            rows.append(measure(loaded.models, batches, *cell, max_new_tokens, lambda: bar.advance(task)))
            write(rows[-1])
    columns = {
        "T": lambda row: f"{row.temperature:g}",
        "γ": lambda row: str(row.gamma),
        "rounds": lambda row: str(row.rounds),
        "token": lambda row: number(row.token),
        "block": lambda row: number(row.block),
        "gain": lambda row: f"{row.gain:+.3f} ({row.low:+.3f} … {row.high:+.3f})",
        "in %": lambda row: percent(row.gain / (1 + row.token), 1),
    }
    screen.print(
        table(
            rows, columns, f"drafted tokens kept per round, means over {len(batches)} texts; in %: of tokens per round"
        )
    )


app = command(main)

if __name__ == "__main__":
    app()
