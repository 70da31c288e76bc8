"""What a small model with the target's tokenizer learns: the target's law over the whole vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from .draft_batches import DraftBatch
from .draft_objective import DraftObjective
from .law_loss import CAUTION, law_loss


def new_assistant(target: PreTrainedModel, hidden: int = 192, layers: int = 5, head_dim: int = 64) -> LlamaForCausalLM:
    """Return a small Llama with the target's vocabulary, to be trained.

    Its embeddings, which are its LM head too, begin as the target's along their principal directions.
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
    """Distillation of the target into a small model.

    Parameters
    ----------
    model
        The small model.
    target
        The model that it is trained for, which stays as it is.
    """

    def __init__(self, model: LlamaForCausalLM, target: PreTrainedModel) -> None:
        super().__init__(target)
        self.model = model

    def forward(self, batch: DraftBatch) -> Tensor:
        said = batch.answers[:, 1:]
        head = self.target.get_output_embeddings().weight.detach()
        last = batch.last[:, :-1][said].to(head.dtype)
        states = self.model.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state[said]
        loss = law_loss(states, self.model.lm_head.weight, lambda rows: (last[rows] @ head.T).float().softmax(-1))
        return loss / max(1, len(last))

    @torch.no_grad()
    def matches(self, batch: DraftBatch, gamma: int) -> Tensor:
        states = self.model.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state
        right = batch.answers.clone()
        for row, text in enumerate(states):
            right[row, 1:] &= self.model.lm_head(text).argmax(-1) == batch.ids[row, 1:]
        return torch.stack([pad(right, (0, k))[:, k:] for k in range(1, gamma + 1)], dim=-1)
