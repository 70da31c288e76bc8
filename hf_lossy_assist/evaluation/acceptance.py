"""How much of a draft each rule keeps, and how likely the target finds the text that comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyUnsupportedError
from ..stats import joined
from .modes import DecodingMode, Models
from .requests import PromptBatch, run_request

DRAFT_ALONE = "draft alone"


@dataclass(frozen=True)
class Acceptance:
    """The results of one mode over all prompts."""

    # The rule and its settings; ``"target alone"`` and ``"draft alone"`` are plain generation.
    mode: Any
    config: Mapping[str, Any]
    temperature: float | None  # None for greedy decoding
    # How many responses, and how many tokens in all of them.
    prompts: int
    tokens: int
    # Drafted tokens kept, and tokens emitted, per round; None for plain generation, as the next two.
    mean_accepted: float | None
    tokens_per_round: float | None
    acceptance_rate: float | None  # share of the drafted tokens that were kept
    accepted_lossy: float | None  # share of the kept tokens that the lossless rule would have rejected
    log_likelihood: float  # mean log p per generated token, in nats, under the target without any warper
    likeliest: float  # share of the generated tokens that are the target's likeliest one after the text before them
    # How far the response runs along with the target's own greedy one before the first difference, as a share of the
    # latter's length; mean over the prompts.
    greedy_prefix: float
    # ROUGE-L (F) of the response against the target's own greedy one, mean over the prompts; None without a tokenizer.
    rouge: float | None
    target_calls_per_100_tokens: float | None
    tokens_per_second: float
    mean_run: float | None  # tokens per run ahead of the target, for SPRINTER


def measure(
    models: Models,
    modes: Sequence[DecodingMode],
    prompts: Sequence[PromptBatch],
    max_new_tokens: int = 100,
    *,
    decode: Callable[[Tensor], str] | None = None,
) -> Iterator[Acceptance]:
    """Answer every prompt in every mode; at each temperature, target and draft alone come first.

    ``decode`` turns tokens ``(n,)`` into text, for ROUGE. A batch of ``prompts`` has one prompt.
    """
    target, alone = models.target, Models(models.draft, models.draft)
    greedy = [run_request(models, DecodingMode(), prompt, max_new_tokens).rows[0] for prompt in prompts]

    def row(mode: DecodingMode, models: Models = models) -> Acceptance:
        responses = [run_request(models, mode, prompt, max_new_tokens) for prompt in prompts]
        texts = [(response.rows[0], own) for response, own in zip(responses, greedy, strict=True)]
        scored = [score_text(target, prompt.ids[0], text) for prompt, (text, _) in zip(prompts, texts, strict=True)]
        log_p = torch.cat([log_p for log_p, _ in scored])
        stats = joined([response.stats for response in responses]) if mode.rule is not None else None
        return Acceptance(
            mode=mode.rule or mode.label,
            config=dict(mode.settings),
            temperature=mode.temperature,
            prompts=len(responses),
            tokens=len(log_p),
            mean_accepted=stats and stats.mean_accepted,
            tokens_per_round=stats and stats.tokens_per_round,
            acceptance_rate=stats and stats.acceptance_rate,
            accepted_lossy=stats and stats.accepted_lossy / max(1, stats.accepted),
            log_likelihood=log_p.double().mean().item(),
            likeliest=torch.cat([likeliest for _, likeliest in scored]).double().mean().item(),
            greedy_prefix=sum(common_prefix(text.to(own.device), own) / len(own) for text, own in texts) / len(texts),
            rouge=decode and rouge_l([(decode(text), decode(own)) for text, own in texts]),
            target_calls_per_100_tokens=stats and stats.target_calls_per_100_tokens,
            tokens_per_second=len(log_p) / sum(response.seconds for response in responses),
            mean_run=stats.mean_run if stats and stats.runs else None,
        )

    for temperature in dict.fromkeys(mode.temperature for mode in modes):
        yield row(DecodingMode(temperature=temperature))
        yield row(DecodingMode(DRAFT_ALONE, temperature=temperature), alone)
        yield from (row(mode) for mode in modes if mode.temperature == temperature)


@torch.inference_mode()
def score_text(target: PreTrainedModel, prompt: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(n,)`` the target's log p of each generated token, and whether it is the likeliest one."""
    ids = torch.cat([prompt, tokens]).to(target.device)
    logits = target(input_ids=ids[None, :-1], use_cache=False).logits[0, len(prompt) - 1 :].float()
    tokens = ids[len(prompt) :]
    return logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0], logits.argmax(-1) == tokens


def common_prefix(a: Tensor, b: Tensor) -> int:
    """Return how many tokens two texts share from the beginning."""
    n = min(len(a), len(b))
    return int((a[:n] == b[:n]).long().cumprod(0).sum())


def rouge_l(texts: Iterable[tuple[str, str]]) -> float:
    """Return the mean ROUGE-L F-measure of pairs of a text and its reference.

    Raises
    ------
    LossyUnsupportedError
        Without the package ``rouge-score``.

    Examples
    --------
    >>> rouge_l([("the cat sat", "the cat sat"), ("a b", "c d")])
    0.5
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise LossyUnsupportedError(
            "ROUGE needs the package rouge-score; install it with `pip install 'hf-lossy-assist[bench]'`"
        ) from error
    scorer = RougeScorer(["rougeL"])
    scores = [scorer.score(reference, text)["rougeL"].fmeasure for text, reference in texts]
    return sum(scores) / len(scores)
