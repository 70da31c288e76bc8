"""Tiny models: random ones of several architectures, and ones whose laws are known."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationMixin,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_lossy_assist.compat.caches import CACHE
from tests.nightly import nightly

VOCAB = 64

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
_NEOX = {k: v for k, v in _COMMON.items() if k not in ("num_key_value_heads", "head_dim")}

# Sliding windows are shorter than any text generated in the tests.
ARCHITECTURES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_COMMON)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_COMMON, sliding_window=8)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**_COMMON, sliding_window=8, layer_types=["sliding_attention", "full_attention"])
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, initializer_range=0.2,
        )
    ),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_NEOX)),
}  # fmt: skip
SOME_ARCHITECTURES = nightly(ARCHITECTURES, but=("llama", "gemma3", "gpt2"))
"""Rotary positions, windows between full layers, and learned positions; each night the others, too."""


def tiny(architecture: str | None = None, seed: int = 0) -> PreTrainedModel:
    """Return a random model in evaluation mode: a Llama of one layer, unless an architecture is named."""
    torch.manual_seed(seed)
    if architecture is None:
        return LlamaForCausalLM(LlamaConfig(**_COMMON | {"num_hidden_layers": 1})).eval()
    return ARCHITECTURES[architecture]().eval()


def resized(model, size: int):
    """Return a copy of ``model`` with so many rows; new rows of the head are not without a chance."""
    other = copy.deepcopy(model)
    torch.manual_seed(0)
    other.resize_token_embeddings(size, mean_resizing=False)
    return other


def noisy_copy(model: PreTrainedModel, noise: float = 0.02, seed: int = 1) -> PreTrainedModel:
    """Return a draft that agrees with ``model`` often, but not always."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return draft


def prompt(length: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCAB, (1, length), generator=torch.Generator().manual_seed(seed))


def prompts(rows: int = 4) -> torch.Tensor:
    return torch.cat([prompt(seed=seed) for seed in range(rows)])


LENGTHS = (7, 3, 11, 5)
"""Of the prompts of a batch."""


def padded(lengths=LENGTHS, pad: int = 0) -> dict[str, torch.Tensor]:
    """Return prompts of different lengths, padded on the left."""
    texts = [prompt(length, seed=i)[0] for i, length in enumerate(lengths)]
    width = max(lengths)
    ids = torch.stack([torch.nn.functional.pad(x, (width - len(x), 0), value=pad) for x in texts])
    mask = torch.stack([(torch.arange(width) >= width - len(x)).long() for x in texts])
    return {"input_ids": ids, "attention_mask": mask}


class ConstantConfig(PretrainedConfig):
    model_type = "constant-law"

    def __init__(self, vocab_size: int = 6, hidden_size: int = 16, **kwargs) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = 1
        self.num_attention_heads = 1
        super().__init__(**kwargs)


class ConstantLM(PreTrainedModel, GenerationMixin):
    """A model that says the same thing after every prefix: ``softmax(W h)`` with fixed W and h.

    It takes positions, so that rows of different lengths decode together.
    """

    config_class = ConstantConfig

    def __init__(self, config: ConstantConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.h = nn.Parameter(torch.ones(config.hidden_size))
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids=None, position_ids=None, logits_to_keep=0, **kwargs):
        batch, length = input_ids.shape
        if (cache := kwargs.get(CACHE)) is not None:
            zeros = torch.zeros(batch, 1, length, 1)
            cache.update(zeros, zeros, 0)
        hidden = self.h.expand(batch, length, -1)[:, -logits_to_keep:]
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), **{CACHE: cache})


def constant(probabilities: list[float], width: int = 16, seed: int = 0) -> ConstantLM:
    """Return a model of the given law; its logits are spread over the hidden units at random, so dropout matters."""
    law = torch.tensor(probabilities)
    model = ConstantLM(ConstantConfig(vocab_size=len(law), hidden_size=width)).eval()
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(len(law), width, generator=generator)
    with torch.no_grad():
        model.h.fill_(1.0)
        model.lm_head.weight.copy_(weight + ((law.log() - weight.sum(1)) / width)[:, None])
    model.generation_config.pad_token_id = 0
    return model
