"""Answers of the bundled target, drafted by one of its heads."""

from __future__ import annotations

from typing import Any

from hf_lossy_assist import pairs


def answered(pair: pairs.Pair, mode: str, n: int = 6, *, head: str, **kwargs: Any) -> Any:
    """Return the output for problems of the validation split, which no training saw."""
    prompts = [example.prompt for example in pair.task.examples("validation", n)]
    inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)
    return pair.target.generate(
        **inputs, assistant_model=getattr(pair, head), lossy_mode=mode, num_assistant_tokens=5, max_new_tokens=160,
        do_sample=False, return_dict_in_generate=True, **kwargs,
    )  # fmt: skip
