"""How well SPRINTER's theory predicts its run lengths: ``python -m benchmarks.run_lengths``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Device, DraftSource, Gamma, PairInstead, TargetSource, Threads, numbers
from hf_lossy_assist.core.statistics import joined
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.heads import VerifierHead
from hf_lossy_assist.theory import sprinter_expected_run_length

from . import command

Text = tuple[Tensor, Tensor]
"""A prompt ``(L,)`` and what was generated after it ``(n,)``."""


@dataclass(frozen=True)
class RunPrediction:
    """A verifier's errors on greedy texts, and the run length that follows from them.

    Attributes
    ----------
    tpr, fpr
        Share of the acceptable drafted tokens, and of the others, that the head lets pass.
    acceptable
        Share of the drafted tokens that are acceptable: q(x) <= λ p(x).
    mean_run
        Theorem 2's expectation of the run length, bounded by ``max_draft - 1``, over r acceptable tokens first, where
        ``P(r) = s^r (1 - s)`` with s the share of acceptable tokens.
    threshold, measured_run
        The head's threshold, and the measured run length.
    """

    tpr: float
    fpr: float
    acceptable: float
    mean_run: float
    threshold: float | None = None
    measured_run: float | None = None


@torch.inference_mode()
def predict_run_length(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    head: VerifierHead,
    threshold: float,
    texts: Sequence[Text],
    *,
    max_draft: int = 64,
) -> RunPrediction:
    """Score the draft's greedy token at every position of some texts, by the head and by both models' probabilities.

    Parameters
    ----------
    target, draft, head
        The models and the verifier head.
    threshold, max_draft
        Settings of SPRINTER.
    texts
        Texts that SPRINTER wrote.
    """
    scored = [_score(target, draft, head, text) for text in texts]
    passes = torch.cat([score for score, _ in scored]) > threshold
    acceptable = torch.cat([label for _, label in scored])
    tpr, fpr = (_share(passes[acceptable == kind]) for kind in (True, False))
    share = _share(acceptable)
    longest = max_draft - 1
    lengths = torch.tensor([sprinter_expected_run_length(tpr, fpr, r, longest) for r in range(longest + 1)])
    weights = share ** torch.arange(longest + 1) * (1 - share)
    weights[-1] = share**longest
    return RunPrediction(tpr, fpr, share, float((weights * lengths).sum()))


def _share(values: Tensor) -> float:
    return values.double().mean().item() if len(values) else 0.0


def _score(target: PreTrainedModel, draft: PreTrainedModel, head: VerifierHead, text: Text) -> tuple[Tensor, Tensor]:
    ids = torch.cat(text)[None].to(target.device)
    start = len(text[0]) - 1
    states = _states(draft, ids[:, :-1])[:, start:]
    q = draft.get_output_embeddings()(states)[0].float().to(ids.device)
    p = target(input_ids=ids, use_cache=False).logits[0, start:-1].float()
    x = q.argmax(-1, keepdim=True)
    acceptable = (q.log_softmax(-1) - p.log_softmax(-1)).gather(-1, x)[:, 0].exp() <= head.config.ratio
    states = states[0]
    if head.config.position == "token":
        read = (torch.cat([ids[:, : start + 1 + i], token[None]], dim=1) for i, token in enumerate(x))
        states = torch.cat([_states(draft, one)[0, -1:] for one in read])
    return head.probability(states.float()), acceptable


def _states(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model.get_decoder()(input_ids=ids.to(model.device), use_cache=False).last_hidden_state


def main(
    model: TargetSource = None,
    assistant: DraftSource = None,
    pair: PairInstead = None,
    verifier_head: Annotated[str | None, typer.Option(help="A folder or a Hub id; the pair's own by default.")] = None,
    thresholds: Annotated[str, typer.Option(help="The head's thresholds.")] = "0.3,0.35,0.4,0.5,0.6,0.7,0.9",
    count: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 20,
    gamma: Gamma = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of each response.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first prompt; each prompt's seed is one more.")] = 0,
    threads: Threads = None,
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")] = None,
) -> None:
    """Tabulate the tokens that SPRINTER commits per run, greedily, beside its theorem 2."""
    limit_threads(threads)
    wanted = numbers("--thresholds", thresholds, float)
    named = ModelOptions(pair, model, assistant, "float32", device)
    named.check()
    loaded, screen = named.load(), Console()
    head = loaded.heads.get("sprinter")
    if verifier_head is not None:
        head = VerifierHead.from_pretrained(verifier_head).to(device)
    if head is None:
        raise LossyValueError("`--verifier-head` has to be given: the models have none")
    models = Models(loaded.target, loaded.draft, {"sprinter": head})
    prompts = batches_of(loaded.encode(loaded.examples(count)), device=device, seed=seed)
    table = Table("threshold", "TPR", "FPR", "acceptable", "run", "theorem 2", title=f"{len(prompts)} prompts, greedy")
    with progress(screen) as bar, records.written(out, records.provenance(device, gamma=gamma, seed=seed)) as write:
        for threshold in bar.track(wanted, description="thresholds"):
            mode = DecodingMode("sprinter", "sprinter", {"threshold": threshold}, gamma)
            responses = [run_request(models, mode, prompt, max_new_tokens) for prompt in prompts]
            texts = [(prompt.ids[0], r.rows[0]) for prompt, r in zip(prompts, responses, strict=True)]
            row = predict_run_length(loaded.target, loaded.draft, head, threshold, texts)
            row = replace(row, threshold=threshold, measured_run=joined([r.stats for r in responses]).mean_run)
            write(row)
            values = (row.threshold, row.tpr, row.fpr, row.acceptable, row.measured_run, row.mean_run)
            table.add_row(*(f"{value:.3g}" for value in values))
    screen.print(table)


app = command(main)

if __name__ == "__main__":
    app()
