"""A worker that checks the models and puts the rules in place of the sampler's, once the models are loaded."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import AutoTokenizer
from vllm.v1.worker.gpu_worker import Worker

from ..plugin import settings_of
from ..settings import EngineSettings
from .identity import model_shown
from .sampler import LossyRejectionSampler


class LossyWork:
    """What the workers for every device have in common."""

    lossy = None  # the sampler of model runner V1; ranks of a pipeline without the LM head have none

    def load_model(self, **kwargs: Any) -> None:
        runner = self.model_runner
        settings = settings_of(self.vllm_config, self.device)
        super().load_model(**kwargs)
        if not hasattr(runner, "rejection_sampler"):  # an earlier stage of a pipeline
            return
        drafter = runner.drafter
        check_models(settings, self.vllm_config, runner.model, getattr(drafter, "model", None))
        config = self.vllm_config.model_config
        tokenizer = None if config.skip_tokenizer_init else AutoTokenizer.from_pretrained(config.tokenizer)
        runner.rejection_sampler = self.lossy = LossyRejectionSampler(runner, settings, tokenizer)
        if settings.drafting.keeps_probs:
            drafter._sample_draft_tokens = partial(_with_probs, drafter, drafter._sample_draft_tokens)

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        counts = [] if self.lossy is None else self.lossy.take_counts()
        if counts:
            getattr(output, "_model_runner_output", output).lossy = counts
        return output


class LossyWorker(LossyWork, Worker):
    """vLLM's worker for GPUs."""


def check_models(settings: EngineSettings, vllm_config: Any, target: Any, draft: Any) -> None:
    """Raise where the engine's rule or certificate does not belong to its models."""
    config = settings.own
    if config is None:
        return
    shown = model_shown(target, vllm_config.model_config)
    own = vllm_config.speculative_config.draft_model_config
    draft = None if own is None or draft is None else model_shown(draft, own)
    config.acceptor.check_models(shown, draft)
    if (certificate := config.certificate) is not None:
        gamma = settings.drafting.tokens
        certificate.check(config.acceptor, config.limits, shown, draft, gamma, certificate.temperature)


def _with_probs(drafter: Any, sample: Any, states: torch.Tensor, sampling: Any) -> tuple[torch.Tensor, Any]:
    """Keep the draft's probabilities where vLLM does not: when all requests decode greedily."""
    if not sampling.all_greedy:
        return sample(states, sampling)
    logits = drafter.model.compute_logits(states)
    return logits.argmax(-1), logits.softmax(-1, dtype=torch.float32)
