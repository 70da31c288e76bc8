"""Measures of an answer: the task's score, or for open-ended texts ROUGE-L and the target's likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..tasks import Example, Task
from ..tasks.plain_prompts import rouge_l


@dataclass(frozen=True, eq=False)
class Measurable:
    """An answer with everything that a measure may read."""

    task: Task
    example: Example
    target: PreTrainedModel
    prompt: Tensor  # token ids, ``(L,)``
    tokens: Tensor  # generated token ids, ``(n,)``
    text: str
    own: str  # the reference mode's text


def likelihood(answer: Measurable) -> float:
    """Return the geometric mean of p over the answer's tokens; p is the target's, without any warper."""
    log_p, _ = score_text(answer.target, answer.prompt, answer.tokens)
    return log_p.double().mean().exp().item()


@torch.inference_mode()
def score_text(target: PreTrainedModel, prompt: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(n,)`` the target's log p of each generated token, and whether it is the likeliest one."""
    ids = torch.cat([prompt, tokens]).to(target.device)
    logits = target(input_ids=ids[None, :-1], use_cache=False).logits[0, len(prompt) - 1 :].float()
    tokens = ids[len(prompt) :]
    return logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0], logits.argmax(-1) == tokens


MEASURES: Mapping[str, Callable[[Measurable], float]] = {
    "task": lambda answer: answer.task.score(answer.example, answer.text, answer.own),
    "rouge": lambda answer: rouge_l(answer.text, answer.own),
    "likelihood": likelihood,
}
"""Measures from 0 to 1 by name: the task's, ROUGE-L against the reference mode's text, and :func:`likelihood`."""
