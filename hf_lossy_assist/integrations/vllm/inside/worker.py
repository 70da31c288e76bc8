"""A worker that checks the models and puts the rules in place of the sampler's, once the models are loaded."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer
from vllm.v1.worker.gpu_worker import Worker

from ..plugin import settings_of
from ..settings import EngineSettings
from .identity import model_shown


class LossyWork:
    """The common part of the workers for all devices."""

    lossy = None  # the runner's sampler; ranks of a pipeline without the LM head have none

    def load_model(self, **kwargs: Any) -> None:
        runner = self.model_runner
        settings = settings_of(self.vllm_config, self.device)
        super().load_model(**kwargs)
        if getattr(runner, "rejection_sampler", None) is None:  # an earlier stage of a pipeline
            return
        if self.use_v2_model_runner:
            from .sampler_v2 import LossyRejectionSampler

            drafter = runner.speculator
        else:
            from .sampler import LossyRejectionSampler

            drafter = runner.drafter
        check_models(settings, self.vllm_config, runner.model, getattr(drafter, "model", None))
        config = self.vllm_config.model_config
        tokenizer = None if config.skip_tokenizer_init else AutoTokenizer.from_pretrained(config.tokenizer)
        runner.rejection_sampler = self.lossy = LossyRejectionSampler(runner, settings, tokenizer)

    def sample_tokens(self, grammar_output: Any) -> Any:
        if self.lossy is None:
            return super().sample_tokens(grammar_output)
        self.lossy.start_step()
        output = super().sample_tokens(grammar_output)
        if counts := self.lossy.rules.take_counts():
            # Steps that are scheduled ahead return their output in another one.
            names = [name for name in ("_model_runner_output", "model_runner_output") if hasattr(output, name)]
            (getattr(output, names[0]) if names else output).lossy = counts
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
        certificate.check(config, shown, draft, gamma, certificate.temperature)
