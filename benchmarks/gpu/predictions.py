"""``python -m benchmarks.gpu.predictions``: what bytes and launches say before anything is measured.

A forward over few tokens reads all weights once, so it takes their bytes over the card's bandwidth. Launched one by
one, its kernels take the host's time instead, where that is longer. A round drafts γ tokens and verifies them once; of
these, (1 − α^(γ+1)) / (1 − α) tokens stay on average (Leviathan et al. 2023, equation 1).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from benchmarks import command
from benchmarks.growing.geometry import PRESETS, Geometry

FILE = Path(__file__).with_name("predictions.jsonl")
ALPHAS, GAMMAS = (0.6, 0.8, 0.9, 0.95), (4, 8, 16)
SHARE = 0.9
"""Of a card's bandwidth that kernels reach which read large matrices."""
KERNELS = 40
"""A layer's kernels in eager PyTorch."""
LAUNCH = 6e-6
"""Seconds of the host's time for each."""


@dataclass(frozen=True)
class Card:
    """A GPU: its name begins with ``name``, and its memory moves so many bytes a second."""

    name: str
    bandwidth: float


CARDS = (Card("H100", 3.35e12), Card("H200", 4.8e12), Card("A100", 2.04e12))


@dataclass(frozen=True)
class Prediction:
    """Milliseconds of forwards and rounds, tokens per round, and speeds beside the target alone, run the same way."""

    card: str
    way: str  # "graphs", or "eager" forwards
    alpha: float
    gamma: int
    target_ms: float
    draft_ms: float
    round_ms: float
    tokens_per_round: float
    tokens_per_s: float
    speedup: float


def bytes_read(shape: Geometry, width: int = 2) -> int:
    """Return the bytes of the weights that a forward over one token reads, at ``width`` bytes each.

    The embedding is not among them: one row of it is read.
    """
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    layer = attention + 3 * shape.hidden * shape.intermediate
    return width * (shape.layers * layer + shape.vocab * shape.hidden)


def forward_seconds(card: Card, shape: Geometry, eager: bool) -> float:
    """Return the time of a forward over few tokens."""
    memory = bytes_read(shape) / (SHARE * card.bandwidth)
    return max(memory, shape.layers * KERNELS * LAUNCH) if eager else memory


def predict(card: Card, target: Geometry, draft: Geometry, alpha: float, gamma: int, eager: bool = False) -> Prediction:
    """Return what lossless rounds cost where each drafted token is kept with probability ``alpha``."""
    p, q = (forward_seconds(card, shape, eager) for shape in (target, draft))
    tokens = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    seconds = gamma * q + p
    return Prediction(
        card.name, "eager" if eager else "graphs", alpha, gamma, round(1000 * p, 2), round(1000 * q, 2),
        round(1000 * seconds, 2), round(tokens, 2), round(tokens / seconds, 1), round(tokens * p / seconds, 2),
    )  # fmt: skip


def predictions() -> Iterator[Prediction]:
    """Yield the grid of the check, for every card."""
    target, draft = PRESETS["llama-8b"], PRESETS["llama-1b"]
    for card in CARDS:
        for eager in (True, False):
            for alpha in ALPHAS:
                yield from (predict(card, target, draft, alpha, gamma, eager) for gamma in GAMMAS)


def table() -> str:
    """Return the predictions of graphs as a table in Markdown: the speed at each α and its best γ."""
    lines = ["| card | 8B, a forward | 1B, a forward | " + " | ".join(f"α = {x}" for x in ALPHAS) + " |"]
    lines.append("|---" * (3 + len(ALPHAS)) + "|")
    for card in CARDS:
        for way in ("eager", "graphs"):
            rows = [x for x in predictions() if (x.card, x.way) == (card.name, way)]
            best = [max((x for x in rows if x.alpha == alpha), key=lambda x: x.speedup) for alpha in ALPHAS]
            cells = [f"{x.speedup:.2f} × (γ = {x.gamma})" for x in best]
            forwards = f"{rows[0].target_ms:.1f} ms | {rows[0].draft_ms:.1f} ms"
            lines.append(f"| {card.name}, {way} | {forwards} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write() -> None:
    """Write the predictions to the file beside this one, and print their table."""
    FILE.write_text("".join(json.dumps(asdict(x)) + "\n" for x in predictions()), encoding="utf-8")
    typer.echo(table())


app = command(write)

if __name__ == "__main__":
    app()
