"""How much of a draft each rule keeps, and how likely the target finds the text that comes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..config import parse
from ..errors import LossyUnsupportedError
from ..heads import VerifierHead
from ..stats import LossyStats
from .run_lengths import foretell
from .runs import Response, Setting, pool, respond

RULES: tuple[tuple[Any, Mapping[str, Any]], ...] = (
    ("lossless", {}),
    ("dropmatch", {"criterion": "js"}),
    ("dropmatch", {"criterion": "naive"}),
    ("ears", {"beta": 0.1}),
    ("topk", {"k": 2}),
    ("topk", {"k": 5, "tolerance": 1.0}),
    ("typical", {}),
    ("relaxed", {"top_n": 10, "delta": 0.6}),
    ("ensemble", {"weight": 0.8}),
    ("thresholds", {"threshold_single": 0.3, "threshold_acc": 0.8}),
    ("near_top", {}),
    ("lenience", {}),
    ("fsd", {}),
    ("fly", {}),
)
"""Every rule at a published or usual setting."""


@dataclass(frozen=True)
class Acceptance:
    """One setting over all prompts.

    Attributes
    ----------
    mode, config
        The rule and its settings; ``"target alone"`` and ``"draft alone"`` are plain generation.
    temperature
        None for greedy decoding.
    prompts, tokens
        How many responses, and how many tokens in all of them.
    mean_accepted, tokens_per_round
        Drafted tokens kept, and tokens emitted, per round; None for plain generation, as the next two.
    acceptance_rate
        Share of the drafted tokens that were kept.
    accepted_lossy
        Share of the kept tokens that the lossless rule would have rejected.
    log_likelihood
        Mean log p per generated token, in nats, under the target without any warper.
    likeliest
        Share of the generated tokens that are the target's likeliest one after the text before them.
    greedy_prefix
        How far the response runs along with the target's own greedy one before the first difference, as a share
        of the latter's length; mean over the prompts.
    rouge
        ROUGE-L (F) of the response against the target's own greedy one, mean over the prompts; None without a
        tokenizer.
    target_calls_per_100_tokens, tokens_per_second
        What a user pays and gets.
    mean_run, foretold_run
        Tokens per run ahead of the target, for SPRINTER; and what its theorem 2 says of them, for greedy texts.
    """

    mode: Any
    config: Mapping[str, Any]
    temperature: float | None
    prompts: int
    tokens: int
    mean_accepted: float | None
    tokens_per_round: float | None
    acceptance_rate: float | None
    accepted_lossy: float | None
    log_likelihood: float
    likeliest: float
    greedy_prefix: float
    rouge: float | None
    target_calls_per_100_tokens: float | None
    tokens_per_second: float
    mean_run: float | None
    foretold_run: float | None


VERIFIER_THRESHOLDS = (0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.9)


def sprinter_settings(head: VerifierHead, temperatures: Iterable[float | None] = (None,)) -> list[Setting]:
    """Return SPRINTER at several thresholds."""
    return [
        Setting("sprinter", {"threshold": threshold}, temperature, head)
        for temperature in temperatures
        for threshold in VERIFIER_THRESHOLDS
    ]


def settings(temperatures: Iterable[float | None] = (None, 0.9)) -> list[Setting]:
    """Return every rule at every temperature, except where a lossy one could not differ from ``lossless``."""
    return [
        Setting(mode, config, temperature)
        for temperature in temperatures
        for mode, config in RULES
        if mode == "lossless" or not parse(mode, dict(config)).acceptor.is_lossless(temperature is not None)
    ]


def measure(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: Sequence[Tensor],
    wanted: Sequence[Setting],
    *,
    gamma: int = 5,
    max_new_tokens: int = 100,
    seed: int = 0,
    decode: Callable[[Tensor], str] | None = None,
) -> Iterator[Acceptance]:
    """Run every setting over every prompt; at each temperature, target and draft alone come first.

    Parameters
    ----------
    target, draft
        Models with one tokenizer.
    prompts
        Token ids ``(L,)``.
    wanted
        The settings.
    gamma, max_new_tokens
        Drafted tokens per round, and the longest response.
    seed
        Prompt ``i`` is continued with ``seed + i``, under every setting.
    decode
        From tokens ``(n,)`` to text, for ROUGE.
    """
    length = {"max_new_tokens": max_new_tokens}
    greedy = [respond(target, None, prompt, Setting(), **length) for prompt in prompts]

    def row(mode: Any, setting: Setting, model: PreTrainedModel) -> Acceptance:
        began = time.perf_counter()
        responses = [
            respond(model, draft, prompt, setting, gamma=gamma, seed=seed + i, **length)
            for i, prompt in enumerate(prompts)
        ]
        seconds = time.perf_counter() - began
        stats = None if setting.mode is None else pool(response.stats for response in responses)
        foretold = None
        if setting.mode == "sprinter" and not setting.do_sample:
            foretold = foretell(target, draft, setting.head, setting.config["threshold"], responses).mean_run
        return _row(mode, setting, stats, responses, greedy, target, decode, seconds, foretold)

    for temperature in dict.fromkeys(setting.temperature for setting in wanted):
        yield row("target alone", Setting(temperature=temperature), target)
        yield row("draft alone", Setting(temperature=temperature), draft)
        for setting in wanted:
            if setting.temperature == temperature:
                yield row(setting.mode, setting, target)


@torch.inference_mode()
def judge_text(target: PreTrainedModel, response: Response) -> tuple[Tensor, Tensor]:
    """Return ``(n,)`` the target's log p of each generated token, and whether it is the likeliest one."""
    ids = torch.cat([response.prompt, response.tokens]).to(target.device)
    logits = target(input_ids=ids[None, :-1], use_cache=False).logits[0, len(response.prompt) - 1 :].float()
    tokens = ids[len(response.prompt) :]
    return logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0], logits.argmax(-1) == tokens


def common_prefix(a: Tensor, b: Tensor) -> int:
    """Return how many tokens two texts share from the beginning."""
    n = min(len(a), len(b))
    return int((a[:n] == b[:n]).long().cumprod(0).sum())


def _row(
    mode: Any,
    setting: Setting,
    stats: LossyStats | None,
    responses: Sequence[Response],
    greedy: Sequence[Response],
    target: PreTrainedModel,
    decode: Callable[[Tensor], str] | None,
    seconds: float,
    foretold: float | None,
) -> Acceptance:
    judged = [judge_text(target, response) for response in responses]
    log_p = torch.cat([log_p for log_p, _ in judged])
    prefixes = [
        common_prefix(response.tokens.to(own.tokens.device), own.tokens) / len(own.tokens)
        for response, own in zip(responses, greedy, strict=True)
    ]
    return Acceptance(
        mode=mode,
        config=dict(setting.config),
        temperature=setting.temperature,
        prompts=len(responses),
        tokens=len(log_p),
        mean_accepted=stats and stats.mean_accepted,
        tokens_per_round=stats and stats.tokens_per_round,
        acceptance_rate=stats and stats.acceptance_rate,
        accepted_lossy=stats and stats.accepted_lossy / max(1, stats.accepted),
        log_likelihood=log_p.double().mean().item(),
        likeliest=torch.cat([likeliest for _, likeliest in judged]).double().mean().item(),
        greedy_prefix=sum(prefixes) / len(prefixes),
        rouge=decode
        and rouge_l([(decode(a.tokens), decode(b.tokens)) for a, b in zip(responses, greedy, strict=True)]),
        target_calls_per_100_tokens=stats and stats.target_calls_per_100_tokens,
        tokens_per_second=len(log_p) / seconds,
        mean_run=stats.mean_run if stats and stats.runs else None,
        foretold_run=foretold,
    )


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
