"""A worker that checks the models and puts the rules in place of the sampler's, once the models are loaded."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import AutoTokenizer
from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_gather
from vllm.platforms import current_platform

from .. import settings_of
from ..settings import EngineSettings

if current_platform.is_cpu():  # elsewhere this module can't be imported
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class LossyWorker(Worker):
    """vLLM's worker for the machine's devices, with rules."""

    lossy = None  # the runner's sampler; ranks of a pipeline without the LM head have none

    def load_model(self, **kwargs: Any) -> None:
        runner = self.model_runner
        settings = settings_of(self.vllm_config, self.device)
        super().load_model(**kwargs)
        if getattr(runner, "rejection_sampler", None) is None:  # an earlier stage of a pipeline
            return
        if self.use_v2_model_runner:
            from .sampler_v2 import LossySamplerV2 as Sampler

            drafter = runner.speculator
        else:
            from .sampler import LossySamplerV1 as Sampler

            drafter = runner.drafter
        check_models(settings, self.vllm_config, runner.model, getattr(drafter, "model", None))
        config = self.vllm_config.model_config
        tokenizer = None if config.skip_tokenizer_init else AutoTokenizer.from_pretrained(config.tokenizer)
        runner.rejection_sampler = self.lossy = Sampler(runner, settings, tokenizer)

    def sample_tokens(self, grammar_output: Any) -> Any:
        if self.lossy is not None:
            self.lossy.start_step()
        return super().sample_tokens(grammar_output)


def check_models(settings: EngineSettings, vllm_config: Any, target: Any, draft: Any) -> None:
    """Raise where the engine's rule or certificate does not belong to its models."""
    config = settings.of_request({})
    if config is None:
        return
    shown = model_shown(target, vllm_config.model_config)
    own = vllm_config.speculative_config.draft_model_config
    draft = None if own is None or draft is None else model_shown(draft, own)
    config.rule.check_models(shown, draft)
    if (certificate := config.certificate) is not None:
        gamma = settings.drafting.tokens
        certificate.check(config.rule, config.in_full(), shown, draft, gamma, certificate.temperature, "vllm")


def model_shown(model: nn.Module, config: Any) -> nn.Module:
    """Show a model of vLLM to the checks of heads and certificates, which know transformers' models.

    Returns a model of the architecture's name with its configuration and its LM head; ``config`` is a ModelConfig.
    """
    inner = model.get_language_model() if hasattr(model, "get_language_model") else model
    head = getattr(inner, "lm_head", None)
    weight = getattr(head, "weight", None)
    vocabulary = config.hf_text_config.vocab_size
    if weight is None or weight.dim() != 2 or not weight.is_floating_point():
        rows = nn.Linear(config.hf_text_config.hidden_size, vocabulary, bias=False, device="meta")
    else:
        if get_tensor_model_parallel_world_size() > 1:
            weight = tensor_model_parallel_all_gather(weight.data, dim=0)
        rows = nn.Module()
        rows.weight = nn.Parameter(weight.data[:vocabulary], requires_grad=False)
    hf_config = config.hf_config
    hf_config._name_or_path = hf_config._name_or_path or config.model
    shown = type(hf_config.architectures[0], (nn.Module,), {"get_output_embeddings": lambda self: rows})()
    shown.config = hf_config
    return shown
