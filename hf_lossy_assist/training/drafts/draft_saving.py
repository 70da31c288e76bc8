"""Trained drafts on disk, with cards about their training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCardData
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState

from ...compat import versions_of
from ...drafting.eagle3 import Eagle3
from ...heads.repository import CARD, WEIGHTS
from ..provenance import command_line


def training_section(texts: Mapping[str, Any], state: TrainerState, held_out: Mapping[str, float]) -> str:
    """Return a card's section about training: how the target wrote ``texts``, and the final measurement."""
    source = "written by the target itself" if texts["prompts"] is None else f"from {texts['prompts']}"
    versions = ", ".join(f"{name} {version}" for name, version in versions_of("torch", "transformers").items())
    shares = [f"{share:.3f}" for name, share in held_out.items() if name.startswith("eval_accuracy_")]
    written = (
        f"the target's, {texts['answer_tokens']:,} tokens; {100 * texts['greedy_share']:.0f} % are greedy, the others "
        f"drawn at temperature {texts['temperature']}"
    )
    return f"""## Training

| | |
|---|---|
| prompts | {source} |
| answers | {written} |
| steps | {state.global_step:,}, which are {state.epoch:.1f} epochs |
| versions | {versions} |

In greedy lossless decoding of {held_out["eval_texts"]} answers to held-out prompts, a round at γ = {len(shares)} keeps
**{held_out["eval_kept"]:.2f} drafted tokens**, on average over the tokens after which a round can begin. This is how
often a drafted token is right, given that those before it are:

| {" | ".join(f"token {k}" for k in range(1, len(shares) + 1))} |
{"|---" * len(shares)}|
| {" | ".join(shares)} |

```bash
{command_line()}
```
"""


def save_eagle3(head: Eagle3, folder: Path, training: str, license: str | None) -> None:
    """Write a head in bfloat16, with a section about its training in the card."""
    head.to(torch.bfloat16).save_pretrained(folder)
    path = folder / CARD
    card = path.read_text(encoding="utf-8")
    if license is not None:
        card = card.replace("---\n", f"---\nlicense: {license}\n", 1)
    path.write_text(card.rstrip() + "\n\n" + training, encoding="utf-8")


def save_assistant(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, training: str, target: str,
    license: str | None,
) -> None:  # fmt: skip
    """Write a small model in bfloat16 with its tokenizer and a card."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / WEIGHTS).chmod(0o644)  # safetensors lets nobody else read it
    tokenizer.save_pretrained(folder)
    data = ModelCardData(
        library_name="transformers", pipeline_tag="text-generation", license=license, base_model=target,
        tags=["hf_lossy_assist", "speculative-decoding", "assisted-generation"],
    )  # fmt: skip
    card = f"""---
{data.to_yaml()}
---

# Assistant for {target}

A Llama of {model.config.num_hidden_layers} layers and the width {model.config.hidden_size} with the tokenizer of \
{target} ({model.num_parameters():,} parameters), distilled
to draft for it in speculative decoding. It is useless alone.

```python
import hf_lossy_assist
from transformers import AutoModelForCausalLM

hf_lossy_assist.enable()
assistant = AutoModelForCausalLM.from_pretrained("this folder or repository", dtype="auto")
target.generate(**inputs, assistant_model=assistant, lossy_mode="lossless")
```

"""
    (folder / CARD).write_text(card + training, encoding="utf-8")
