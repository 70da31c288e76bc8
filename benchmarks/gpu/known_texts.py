"""Models of any size whose texts are known, and whose drafts are kept at a chosen rate.

The weights are random, but layers hardly change the residual stream, and row f(x) of the LM head holds the embedding of
x. So the target continues x by x + 1, and so does the draft, but for a share 1 − α of all tokens, which it continues
wrongly. Every draft is then kept up to its first such token, in any dtype, whoever drafts.
"""

from __future__ import annotations

from dataclasses import asdict

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from .growing import PRESETS, Geometry
from .run import Run

TINY = (Geometry(128, 3, 4, 2, 32, 256, 1024), Geometry(64, 2, 4, 2, 16, 128, 1024))
_SMALL = 0.01


@torch.no_grad()
def pair_of(run: Run, alpha: float) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target of 8B shapes and a draft of 1B shapes, whose tokens are right at a rate of ``alpha``."""
    shapes = TINY if run.tiny else (PRESETS["llama-8b"], PRESETS["llama-1b"])
    models = [built(run, shape) for shape in shapes]
    for model, rate in zip(models, (1.0, alpha), strict=True):
        model.model.embed_tokens.weight.normal_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(_SMALL)
            layer.mlp.down_proj.weight.mul_(_SMALL)
        continue_by(model, rate)
    return tuple(models)


def built(run: Run, shape: Geometry) -> PreTrainedModel:
    """Return a Llama with random weights."""
    config = LlamaConfig(
        **asdict(shape), max_position_embeddings=8192, tie_word_embeddings=False, bos_token_id=0,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with torch.device(run.device):
        model = AutoModelForCausalLM.from_config(config, dtype=run.dtype).eval()
    model.generation_config.eos_token_id = None
    return model


@torch.no_grad()
def continue_by(model: PreTrainedModel, alpha: float) -> None:
    """Let x be followed by x + 1, but for a share ``1 - alpha`` of all x by another token."""
    embeds = model.model.embed_tokens.weight
    x = torch.arange(len(embeds), device=embeds.device)
    wrong = torch.rand(len(x), generator=torch.Generator().manual_seed(0)).to(x.device) >= alpha
    follows = torch.where(wrong, x + len(x) // 2, x + 1) % len(x)
    model.lm_head.weight.zero_().index_add_(0, follows, embeds)


def prompts(run: Run, rows: int = 1) -> torch.Tensor:
    """Return prompts that count up, each from somewhere else."""
    starts = 100 + 37 * torch.arange(rows, device=run.device)[:, None]
    return starts + torch.arange(64, device=run.device)


def is_known(output: torch.Tensor, prompt: torch.Tensor, vocab: int) -> bool:
    """Tell whether a text goes on as it has to."""
    new = torch.arange(1, output.shape[1] - prompt.shape[1] + 1, device=output.device)
    return bool((output[:, prompt.shape[1] :] == (prompt[:, -1:] + new) % vocab).all())
