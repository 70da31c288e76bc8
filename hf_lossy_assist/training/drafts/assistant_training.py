"""Training of assistants: small models that learn the target's distribution over its whole vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from .draft_objective import CAUTION, DraftObjective, soft_cross_entropy


def new_assistant(target: PreTrainedModel, hidden: int = 192, layers: int = 5, head_dim: int = 64) -> LlamaForCausalLM:
    """Return an untrained small Llama with the target's vocabulary.

    Its embeddings, tied to its LM head, start as the principal components of the target's.
    """
    config = target.config.get_text_config(decoder=True)
    heads = max(1, hidden // head_dim)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden // heads, tie_word_embeddings=True,
        max_position_embeddings=config.max_position_embeddings, rms_norm_eps=1e-5,
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id,
    ))  # fmt: skip
    model.generation_config = target.generation_config
    rows = target.get_output_embeddings().weight.detach().float().cpu()
    if rows.shape == (config.vocab_size, config.hidden_size) and config.hidden_size >= hidden:
        _, directions = torch.linalg.eigh(rows.T @ rows)
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(rows @ directions[:, -hidden:])
            model.model.norm.weight.fill_(CAUTION)
    return model.float()


class AssistantObjective(DraftObjective):
    """Distillation of the target into a small model with tied embeddings."""

    model: LlamaForCausalLM

    def __init__(self, model: LlamaForCausalLM, target: PreTrainedModel) -> None:
        super().__init__(target)
        self.decoder = model.model  # holds all that is trained, since the LM head is tied
        vars(self)["model"] = model

    def forward(self, ids: Tensor, answers: Tensor, states: Tensor, last: Tensor, done: float = 1.0) -> Tensor:
        said = answers[:, 1:]
        head = self.target.get_output_embeddings().weight.detach()
        last = last[:, :-1][said].to(head.dtype)
        own = self.decoder(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[said]
        weight = self.decoder.embed_tokens.weight
        loss = soft_cross_entropy(own, weight, lambda rows: (last[rows] @ head.T).float().softmax(-1))
        return loss / max(1, len(last))

    @torch.no_grad()
    def matches(self, ids: Tensor, answers: Tensor, states: Tensor, last: Tensor, gamma: int) -> Tensor:
        own = self.decoder(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        right = answers.clone()
        for row, text in enumerate(own):
            right[row, 1:] &= self.model.lm_head(text).argmax(-1) == ids[row, 1:]
        return torch.stack([pad(right, (0, k))[:, k:] for k in range(1, gamma + 1)], dim=-1)
