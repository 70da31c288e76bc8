"""A tiny target with a tokenizer, and texts that it has written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hf_lossy_assist.training.drafts.assistant_training import AssistantObjective, new_assistant
from hf_lossy_assist.training.drafts.draft_batches import DraftData
from hf_lossy_assist.training.drafts.draft_training import DraftTraining, DraftTrainingSettings
from hf_lossy_assist.training.drafts.eagle3_training import Eagle3Objective, new_eagle3
from hf_lossy_assist.training.drafts.openings import self_asked
from hf_lossy_assist.training.drafts.state_shards import StateShards
from hf_lossy_assist.training.drafts.text_run import write_until
from hf_lossy_assist.training.drafts.text_store import TextStore
from hf_lossy_assist.training.drafts.text_writing import TextSettings
from tests.models import VOCAB, tiny

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} </s> {% endfor %}<answer>"
SETTINGS = TextSettings(rows=8, max_new_tokens=20, max_turn_tokens=8, temperature=1.5)

TRAINING = DraftTrainingSettings(steps=30, learning_rate=1e-2, warmup=3, bfloat16=False, gamma=3)


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


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> TextStore:
    """Texts of the tiny target, by prompts of its own."""
    store, target, words = TextStore(tmp_path_factory.mktemp("texts")), tiny("llama"), tokenizer()
    store.open(target, {"prompts": None})
    write_until(1200, store, target, words, [self_asked(words)], SETTINGS)
    return store


def data(store: TextStore, folder: Path, layers: tuple[int, ...] = (0, 1, 2), **values) -> DraftData:
    """Return the texts as data for training; the tiny target has three states to read."""
    values = {"batch_tokens": 128, "held_out_share": 0.2} | values
    return DraftData(store, StateShards(folder, tiny("llama"), layers, values.pop("budget", 2**30), 256), **values)


def training(store, folder, kind="eagle3", settings=TRAINING, run=(), **values) -> DraftTraining:
    torch.manual_seed(0)
    target, wanted = tiny("llama"), (0, 1, 2) if kind == "eagle3" else ()
    texts = data(store, folder / "states", wanted, **values)
    if kind == "eagle3":
        objective = Eagle3Objective(
            new_eagle3(target, texts.frequent(48, target), texts.some_states()), target, single=0.4, dropout=0.1
        )
    else:
        objective = AssistantObjective(new_assistant(target, 16, 2, head_dim=8), target)
    return DraftTraining(objective, texts, settings, folder, dict(run), Accelerator(cpu=True))
