"""Running one setting over many prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..enabling import enabled
from ..stats import LossyStats


@dataclass(frozen=True)
class Setting:
    """A rule, and the mode of decoding.

    Attributes
    ----------
    mode, config
        ``lossy_mode`` and ``lossy_config``; without a mode the model decodes alone.
    temperature
        Tokens are drawn at this temperature, with no other warper; None decodes greedily.
    head
        ``lossy_head``, for a rule that uses one.
    """

    mode: Any = None
    config: Mapping[str, Any] = field(default_factory=dict)
    temperature: float | None = None
    head: Any = None

    @property
    def do_sample(self) -> bool:
        return self.temperature is not None

    def keywords(self) -> dict[str, Any]:
        """Return what ``generate()`` needs to decode this way, whatever the model's own defaults are."""
        warpers = {"temperature": self.temperature, "top_k": 0, "top_p": 1.0} if self.do_sample else {}
        return {"do_sample": self.do_sample, "return_dict_in_generate": True, **warpers}


@dataclass(frozen=True, eq=False)
class Response:
    """A text in two parts.

    Attributes
    ----------
    prompt, tokens
        ``(L,)`` what was given, and ``(n,)`` what was generated, EOS included.
    stats
        The run's statistics, for a run with a rule.
    """

    prompt: Tensor
    tokens: Tensor
    stats: LossyStats | None = None


def tokenize(tokenizer: PreTrainedTokenizerBase, prompts: Iterable[str], device: torch.device) -> list[Tensor]:
    """Return every prompt's token ids ``(L,)``."""
    return [torch.tensor(ids, device=device) for ids in tokenizer(list(prompts))["input_ids"]]


@torch.inference_mode()
def respond(
    model: PreTrainedModel,
    draft: PreTrainedModel | None,
    prompt: Tensor,
    setting: Setting,
    *,
    gamma: int = 5,
    max_new_tokens: int = 100,
    seed: int = 0,
) -> Response:
    """Return a model's response to one prompt ``(L,)`` under a setting."""
    arguments = setting.keywords() | {"max_new_tokens": max_new_tokens, "pad_token_id": 0}
    ids = prompt[None]
    mask = torch.ones_like(ids)
    if setting.mode is None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            output = model.generate(input_ids=ids, attention_mask=mask, **arguments)
        return Response(prompt, output.sequences[0, len(prompt) :])
    with enabled(model):
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            assistant_model=draft,
            num_assistant_tokens=gamma,
            lossy_mode=setting.mode,
            lossy_config={**setting.config, "seed": seed},
            lossy_head=setting.head,
            **arguments,
        )
    return Response(prompt, output.sequences[0, len(prompt) :], output.lossy_stats)


@torch.inference_mode()
def respond_greedily(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    batch_size: int = 50,
) -> list[Response]:
    """Return a model's own greedy responses, many prompts at a time."""
    responses = []
    for start in range(0, len(prompts), batch_size):
        batch = tokenizer(list(prompts[start : start + batch_size]), return_tensors="pt", padding=True,
                          padding_side="left").to(model.device)  # fmt: skip
        output = model.generate(**batch, do_sample=False, max_new_tokens=max_new_tokens)
        width = batch["input_ids"].shape[1]
        for row, mask in zip(output, batch["attention_mask"].bool(), strict=True):
            responses.append(Response(row[:width][mask], until_end(row[width:], model)))
    return responses


def until_end(tokens: Tensor, model: PreTrainedModel) -> Tensor:
    """Cut what stands after the first EOS: the padding of a batch."""
    eos = model.generation_config.eos_token_id
    if eos is None:
        return tokens
    ends = torch.isin(tokens, torch.tensor(eos, device=tokens.device)).nonzero()
    return tokens[: ends[0] + 1] if len(ends) else tokens


def pool(stats: Iterable[LossyStats]) -> LossyStats:
    """Add up the statistics of several runs, so that every round counts the same."""
    runs = list(stats)
    histogram: Counter[int] = Counter()
    accepted_by: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    ahead: Counter[int] = Counter()
    flops: Counter[str] = Counter()
    for run in runs:
        histogram.update(dict(enumerate(run.accepted_histogram)))
        ahead.update(dict(enumerate(run.run_histogram)))
        flops.update(run.flops)
        accepted_by.update(run.accepted_by)
        seconds.update(run.seconds)
    counted = (
        "rounds", "drafted", "accepted", "accepted_lossy", "corrected", "bonus", "target_calls", "draft_calls",
        "unverified", "target_tokens", "draft_tokens", "head_calls",
    )  # fmt: skip
    return LossyStats(
        **{name: sum(getattr(run, name) for run in runs) for name in counted},
        accepted_histogram=tuple(histogram[i] for i in range(max(histogram, default=-1) + 1)),
        run_histogram=tuple(ahead[i] for i in range(max(ahead, default=-1) + 1)),
        flops=dict(flops),
        accepted_by=dict(accepted_by),
        seconds=dict(seconds),
        lossless=all(run.lossless for run in runs),
        trace=tuple(part for run in runs for part in run.trace),
    )
