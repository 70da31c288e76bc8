"""A tiny target with a tokenizer, texts that it has written, and trainings on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hf_lossy_assist.training.drafts.assistant_training import AssistantObjective, new_assistant
from hf_lossy_assist.training.drafts.draft_data import DraftData, Item, items, split
from hf_lossy_assist.training.drafts.draft_trainer import DraftTrainer, draft_arguments
from hf_lossy_assist.training.drafts.eagle3_training import Eagle3Objective, new_eagle3
from hf_lossy_assist.training.drafts.target_states import TargetStates
from hf_lossy_assist.training.drafts.text_writing import TextSettings, self_asked, write_until
from hf_lossy_assist.training.drafts.texts import TextStore
from tests.tiny_models import VOCAB, tiny

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} </s> {% endfor %}<answer>"
SETTINGS = TextSettings(rows=8, max_new_tokens=20, max_turn_tokens=8, temperature=1.5)
ENDS = frozenset({2})


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words, w3 … w60, with a chat template."""
    special = ["<pad>", "<s>", "</s>", "<user>", "<answer>"]
    words = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(len(special), VOCAB))])}
    model = Tokenizer(WordLevel(words, "<pad>"))
    model.pre_tokenizer = WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    made.chat_template = template
    return made


def write_model(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Write the target with its tokenizer, as ``--model`` takes it."""
    tiny("llama").save_pretrained(folder)
    tokenizer(template).save_pretrained(folder)
    return folder


def written(folder: Path, tokens: int) -> TextStore:
    """Return texts of the tiny target, by prompts of its own."""
    store, target = TextStore(folder), tiny("llama")
    store.open(target, {"prompts": None})
    write_until(tokens, store, target, [self_asked(tokenizer())], SETTINGS, ENDS)
    return store


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> TextStore:
    """Enough of them for training."""
    return written(tmp_path_factory.mktemp("texts"), 1600)


def data(store: TextStore, layers: tuple[int, ...] = (0, 1, 2)) -> tuple[DraftData, list[Item]]:
    """Return the texts as data for training, and greedy ones held out; the tiny target has three states to read."""
    train, held_out = split(store.texts(), 0.2)
    states = TargetStates(store, tiny("llama"), layers, 256)
    return DraftData(train, states, 128), items([text for text in held_out if text.greedy], states)


def training(store: TextStore, folder: Path, kind: str = "eagle3", **values: Any) -> DraftTrainer:
    """Return a training on the texts that have been written."""
    torch.manual_seed(0)
    target = tiny("llama")
    texts, held_out = data(store, (0, 1, 2) if kind == "eagle3" else ())
    if kind == "eagle3":
        head = new_eagle3(target, texts.frequent(48, VOCAB), texts.some_states())
        objective = Eagle3Objective(head, target, single=0.4, dropout=0.1)
    else:
        objective = AssistantObjective(new_assistant(target, 16, 2, head_dim=8), target)
    values = {
        "steps": 30,
        "learning_rate": 1e-2,
        "warmup": 3,
        "cooldown": 1.0,
        "logging_steps": 1,
        "eval_steps": 99,
    } | values
    args = draft_arguments(folder, **values, use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True)
    return DraftTrainer(objective, args, texts, held_out, gamma=3)
