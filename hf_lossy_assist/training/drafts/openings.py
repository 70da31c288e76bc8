"""What texts for training begin with: prompts that somebody has, or a conversation whose user the target plays."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ...errors import LossyValueError
from ...tasks.plain_prompts import Prompts
from ...tasks.task import Example, Task

_FIELDS = ("prompt", "question", "instruction", "text")
_MARK = "\u2588"


@dataclass(frozen=True)
class Opening:
    """The tokens that a text begins with.

    Attributes
    ----------
    ids
        The tokens.
    turn_end
        What follows the user's turn where that is still to be written: its first token ends the turn. Empty where
        the answer comes next.
    """

    ids: tuple[int, ...]
    turn_end: tuple[int, ...] = ()


def self_asked(tokenizer: PreTrainedTokenizerBase) -> Opening:
    """Return the opening after which a chat model writes the user's turn.

    Raises
    ------
    LossyValueError
        When the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise LossyValueError(
            "without `--prompts` or `--task` the target writes its prompts itself, for which its tokenizer has to have "
            "a chat template, but it has none; name a file of prompts by `--prompts`"
        )
    turn = [{"role": "user", "content": _MARK}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, _, after = text.partition(_MARK)
    ids, end = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, after))
    if not ids or not end:
        raise LossyValueError(
            "the chat template of the target's tokenizer has nothing before or behind a user's turn, so that nobody "
            "can tell where it ends; name a file of prompts by `--prompts`"
        )
    return Opening(tuple(ids), tuple(end))


def of_prompts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[Opening]:
    """Return the openings of prompts, in the chat template where there is one."""
    task = _Texts()
    return [Opening(tuple(task.encode(Example(text, ""), tokenizer))) for text in dict.fromkeys(texts)]


def of_task(task: Task, tokenizer: PreTrainedTokenizerBase, n: int) -> list[Opening]:
    """Return the openings of a task's first training examples."""
    split = "train" if "train" in task.splits else task.splits[0]
    return [Opening(ids) for ids in dict.fromkeys(tuple(task.encode(e, tokenizer)) for e in task.examples(split, n))]


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file: one a line, or JSON (a list, or lines) of strings, or of objects that have one.

    Raises
    ------
    LossyValueError
        When the file is missing, can't be read, or holds no prompts.
    """
    if not path.is_file():
        raise LossyValueError(f"`--prompts` has to be a file of prompts, but there is none at {str(path)!r}")
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".json", ".jsonl"):
        prompts = [line.strip() for line in text.splitlines()]
    else:
        try:
            values = json.loads(text) if path.suffix == ".json" else [json.loads(x) for x in text.splitlines() if x]
        except ValueError as error:
            raise LossyValueError(f"`--prompts` {str(path)!r} is not JSON: {error}") from error
        prompts = [_prompt_of(value) for value in values]
    if not any(prompts):
        raise LossyValueError(
            f"`--prompts` has to hold prompts, one a line or JSON with one of {list(_FIELDS)}, but {str(path)!r} has "
            "none"
        )
    return [prompt for prompt in prompts if prompt]


def _prompt_of(value: object) -> str:
    if isinstance(value, dict):
        value = next((value[name] for name in _FIELDS if name in value), "")
    return value if isinstance(value, str) else ""


def dealt(openings: Sequence[Opening], batch: int, rows: int, seed: int) -> list[Opening]:
    """Return the openings of a batch, which are of similar length; after the last batch comes the first one again."""
    by_length = sorted(openings, key=lambda opening: len(opening.ids))
    parts = [by_length[i : i + rows] for i in range(0, len(by_length), rows)]
    if len(openings) == 1:  # every row writes a text of its own
        return [*openings] * rows
    time, place = divmod(batch, len(parts))
    random.Random(f"{seed}/{time}").shuffle(parts)
    return parts[place]


class _Texts(Prompts):
    """How a prompt is rendered, without a file of them."""

    def __init__(self) -> None:
        self._by_split = {}
