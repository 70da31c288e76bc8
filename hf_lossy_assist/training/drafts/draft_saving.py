"""Finished drafts on disk, with cards that say how they were trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCardData
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...compat import versions_of
from ...drafting.eagle3 import Eagle3
from ...heads.hub import CARD
from ...heads.repository import WEIGHTS
from .draft_training import HeldOut


@dataclass(frozen=True)
class TrainingRecord:
    """What a card says about a training.

    Attributes
    ----------
    texts
        The settings by which the target wrote the texts, with the number of ``answer_tokens`` there are.
    steps, tokens_seen
        Steps of the optimiser, and tokens of answers in them.
    held_out
        The measurement at the end.
    command
        The command line.
    """

    texts: Mapping[str, Any]
    steps: int
    tokens_seen: int
    held_out: HeldOut
    command: str

    def section(self) -> str:
        """Return the part of a card, in Markdown."""
        texts, held_out = self.texts, self.held_out
        source = "written by the target itself" if texts["prompts"] is None else f"from {texts['prompts']}"
        row = " | ".join(f"{share:.3f}" for share in held_out.accuracies)
        columns = " | ".join(f"token {k}" for k in range(1, len(held_out.accuracies) + 1))
        versions = ", ".join(f"{name} {version}" for name, version in versions_of("torch", "transformers").items())
        return _SECTION.format(
            source=source, tokens=f"{texts['answer_tokens']:,}", greedy=f"{100 * texts['greedy_share']:.0f}",
            temperature=texts["temperature"], steps=f"{self.steps:,}", seen=f"{self.tokens_seen:,}",
            kept=f"{held_out.kept:.2f}", gamma=len(held_out.accuracies), texts=held_out.texts, columns=columns,
            rule="|---" * len(held_out.accuracies), row=row, command=self.command, versions=versions,
        )  # fmt: skip


def save_eagle3(head: Eagle3, folder: Path, record: TrainingRecord, license: str | None) -> None:
    """Write a head in bfloat16, and what its card says about its training."""
    dtype = head.dtype
    head.to(torch.bfloat16).save_pretrained(folder)
    head.to(dtype)
    path = folder / CARD
    card = path.read_text(encoding="utf-8")
    if license is not None:
        card = card.replace("---\n", f"---\nlicense: {license}\n", 1)
    path.write_text(card.rstrip() + "\n\n" + record.section(), encoding="utf-8")


def save_assistant(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, record: TrainingRecord,
    target: str, license: str | None,
) -> None:  # fmt: skip
    """Write a small model in bfloat16 with its tokenizer and a card."""
    model.to(torch.bfloat16).save_pretrained(folder)
    model.float()
    (folder / WEIGHTS).chmod(0o644)  # safetensors keeps it from everyone else
    tokenizer.save_pretrained(folder)
    data = ModelCardData(
        library_name="transformers", pipeline_tag="text-generation", license=license, base_model=target,
        tags=["hf_lossy_assist", "speculative-decoding", "assisted-generation"],
    )  # fmt: skip
    config = model.config
    card = _CARD.format(
        metadata=data.to_yaml(), target=target, parameters=f"{model.num_parameters():,}",
        layers=config.num_hidden_layers, hidden=config.hidden_size,
    )  # fmt: skip
    (folder / CARD).write_text(card + "\n" + record.section(), encoding="utf-8")


_CARD = """---
{metadata}
---

# Assistant for {target}

A Llama of {layers} layers and the width {hidden} with the tokenizer of {target} ({parameters} parameters), distilled
from it to draft for it in speculative decoding. It is of no use alone.

```python
import hf_lossy_assist
from transformers import AutoModelForCausalLM

hf_lossy_assist.enable()
assistant = AutoModelForCausalLM.from_pretrained("this folder or repository", dtype="auto")
target.generate(**inputs, assistant_model=assistant, lossy_mode="lossless")
```
"""

_SECTION = """## Training

| | |
|---|---|
| prompts | {source} |
| answers | the target's, {tokens} tokens; {greedy} % are greedy, the others drawn at temperature {temperature} |
| steps | {steps} |
| tokens of answers seen | {seen} |
| versions | {versions} |

On answers to prompts that training has not seen, greedy lossless decoding keeps **{kept} drafted tokens per round** at
γ = {gamma} ({texts} texts). A drafted token is the target's own, those before it being right, this often:

| {columns} |
{rule}|
| {row} |

```bash
{command}
```
"""
