"""``python -m benchmarks.dropped_heads FOLDER``: how often DropMatch's dropped heads agree along a target's answers.

The paper's table 2 has the sizes of the majorities of five heads on HumanEval, and table 3 the divergences of tokens
that each criterion keeps. Here they are asked along the answers of a folder of ``evaluate``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor, nn

from benchmarks import PairName, command
from benchmarks.kept_answers import whole_text
from hf_lossy_assist.acceptors.dropmatch import DropMatch, majority
from hf_lossy_assist.cli.console import Console, progress
from hf_lossy_assist.cli.options import Data, Dtype, TaskName, Threads
from hf_lossy_assist.cli.setup import Setup
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.evaluation.answers import by_mode, load_answers
from hf_lossy_assist.evaluation.quality import interval
from hf_lossy_assist.models.lm_head_hook import DROPOUTS, choose_dropout
from hf_lossy_assist.models.reading import read_text

_ROWS = 32


@dataclass(frozen=True)
class Said:
    """What K heads said at positions ``(N,)``: the size of the majority, its p, and the draft's distance."""

    size: Tensor
    p: Tensor  # the undropped head's probability of the majority's token
    by_divergence: Tensor  # whether JS(q, centroid) is at most the largest JS of a head
    by_majority: Tensor  # whether the draft's likeliest token is the majority's
    js: Tensor  # of q and the centroid


def compared(head: nn.Module, states: Tensor, q: Tensor, x: Tensor, mask: Tensor) -> Verification:
    """Return what a target with this ``head`` says of drafted tokens ``x`` ``(N,)``, one a row, by dropped heads too.

    ``mask`` ``(N, K, d)`` scales the entries of the K heads' inputs, and ``q`` ``(N, V)`` is the draft's distribution.
    """
    logits = head(states[:, None] * mask).float()
    clean = head(states).float()
    return Verification(
        x[:, None],
        clean[:, None].expand(-1, 2, -1),
        draft_logits=q.log()[:, None],
        dropped_logits=logits[:, :, None],
        centroid_logits=logits.mean(1)[:, None],
    )


def ask(head: nn.Module, states: Tensor, q: Tensor, rate: float, paths: int, generator: torch.Generator) -> Said:
    """Ask dropped heads at positions with ``states`` ``(N, d)``, where the draft has the distribution ``q`` ``(N, V)``.

    Examples
    --------
    >>> head = nn.Linear(4, 3, bias=False)
    >>> q = torch.full((2, 3), 1 / 3)
    >>> ask(head, torch.ones(2, 4), q, 0.0, 5, torch.Generator()).size.tolist()  # without dropout, all agree
    [5, 5]
    """
    mask = (torch.rand((len(states), paths, states.shape[-1]), generator=generator) >= rate).to(states) / (1 - rate)
    x = q.argmax(-1)
    v = compared(head, states, q, x, mask)
    said = DropMatch(paths, rate, candidates=None).quantities(v)
    of_draft, farthest = (said[name][:, 0] for name in ("JS of the draft", "largest JS of a head"))
    y = v.dropped_logits.argmax(-1)
    own = majority(y, v.centroid_logits.softmax(-1))
    size, p = (y[:, :, 0] == own).sum(1), v.p[:, 0].gather(-1, own)[:, 0]
    return Said(size, p, of_draft <= farthest, x == own[:, 0], of_draft)


def table(problems: list[Said], paths: int) -> str:
    """Return the share of positions by the size of the majority, and by the criteria that keep the draft's token."""
    lines = ["| heads that agree | positions, % | mean p of their token |", "|---|---|---|"]

    def share(of: str, wanted: float) -> str:
        estimate, low, high = interval([(100 * float((getattr(x, of) == wanted).sum()), len(x.size)) for x in problems])
        return f"{estimate:.2f} ({max(0.0, low):.2f} … {high:.2f})"

    size, p, js = (torch.cat([getattr(x, name) for x in problems]) for name in ("size", "p", "js"))
    for count in range(1, paths + 1):
        at = size == count
        lines.append(f"| {count} | {share('size', count)} | {f'{p[at].mean():.3f}' if at.any() else ''} |")
    lines += ["", "| the draft's token is | positions, % | mean JS(q, centroid) |", "|---|---|---|"]
    near, most = (torch.cat([getattr(x, name) for x in problems]) for name in ("by_divergence", "by_majority"))
    for name, at in {
        "kept by both criteria": near & most,
        "kept by divergence alone": near & ~most,
        "kept as the majority's alone": most & ~near,
        "refused": ~near & ~most,
    }.items():
        lines.append(f"| {name} | {100 * at.double().mean():.2f} | {f'{js[at].mean():.4f}' if at.any() else ''} |")
    return "\n".join(lines)


def main(
    folder: Annotated[Path, typer.Argument(help="A folder of `evaluate` with the target's texts.")],
    task: TaskName = None,
    data: Data = None,
    pair: PairName = "qwen-coder",
    dtype: Dtype = None,
    mode: Annotated[str, typer.Option(help="Whose answers.")] = "plain",
    paths: Annotated[int, typer.Option(help="How many heads.")] = 5,
    threads: Threads = None,
) -> None:
    """Print how often dropped heads agree, and which of the draft's tokens each criterion keeps."""
    settings = {} if threads is None else {"threads": threads}
    answers = by_mode(load_answers(folder)[1])[mode]
    texts = {number: whole_text(answer) for number, answer in sorted(answers.items())}
    loaded = Setup.of(pair, None, None, dtype, None, settings, task=task, data=data).load()
    examples = loaded.task.examples("test", max(answers) + 1)
    head, rates, problems = loaded.target.get_output_embeddings(), [], []
    with torch.inference_mode(), progress(Console()) as bar:
        for number, text in bar.track(texts.items(), description="reading"):
            prompt = loaded.task.encode(examples[number], loaded.tokenizer)
            ids = [*prompt, *loaded.tokenizer(text, add_special_tokens=False)["input_ids"]]
            target, draft = (read_text(model, ids) for model in (loaded.target, loaded.draft))
            states = target.states
            rate = DROPOUTS[choose_dropout(head, states[: len(prompt)][-64:], paths)]
            at = slice(len(prompt) - 1, len(ids) - 1)
            generator, said = torch.Generator().manual_seed(number), []
            for some, q in zip(states[at].split(_ROWS), draft.logits[at].split(_ROWS), strict=True):
                width = head(some[:1]).shape[-1]
                said.append(ask(head, some, q[:, :width].float().softmax(-1), rate, paths, generator))
            problems.append(Said(*(torch.cat([getattr(x, f) for x in said]) for f in Said.__dataclass_fields__)))
            rates.append(rate)
    typer.echo(
        f"{len(problems)} answers, {sum(len(x.size) for x in problems):,} tokens, dropout {np.mean(rates):.3f}\n"
    )
    typer.echo(table(problems, paths))


app = command(main)

if __name__ == "__main__":
    app()
