"""Shows vLLM's models to the checks of heads and certificates, which know transformers' models."""

from __future__ import annotations

from typing import Any

from torch import nn
from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_gather


def model_shown(model: nn.Module, config: Any) -> nn.Module:
    """Return a model of the architecture's name with its configuration and its LM head; ``config`` is a ModelConfig."""
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
