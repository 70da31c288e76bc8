"""A target and a draft with tokenizers of their own."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import noisy_copy, tiny

SPECIAL = ["<pad>", "<s>", "</s>"]
WORDS = [f"{a}{b}" for a in "bcdfghklm" for b in "aeiou"]


def tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, "<unk>", *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, padding_side="left", **special)


TARGET = tokenizer(WORDS)
DRAFT = tokenizer([*WORDS[40:], "zzz", *WORDS[:35]])  # another order, five words less, and one more
BOTH = {"tokenizer": TARGET, "assistant_tokenizer": DRAFT}
SIZE = len(TARGET)


def pair(noise: float = 0.01):
    """Return a target, and a draft that thinks much the same, in its own tokens."""
    target = tiny("llama")
    target.resize_token_embeddings(SIZE, mean_resizing=False)
    draft = noisy_copy(target, noise)
    draft.resize_token_embeddings(len(DRAFT), mean_resizing=False)
    ours = torch.tensor(
        [TARGET.get_vocab().get(word, 3) for word in sorted(DRAFT.get_vocab(), key=DRAFT.get_vocab().get)]
    )
    with torch.no_grad():
        for get in ("get_input_embeddings", "get_output_embeddings"):
            getattr(draft, get)().weight.copy_(getattr(target, get)().weight[ours])
    return target, draft


def prompts(*texts: str):
    return TARGET(list(texts), return_tensors="pt", padding=True, return_token_type_ids=False)
