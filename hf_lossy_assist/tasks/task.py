"""The interface of tasks, prompts and a check of the answers; and the rows of a task's data."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import LossyValueError, brief, need
from ..store.folder import json_lines, read_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """One prompt with its reference."""

    prompt: str  # the text to continue
    answer: str  # the reference, in the form that :meth:`Task.answer` returns
    solution: str = ""  # a full reference response, if the task has one

    def digest(self, tokens: Sequence[int]) -> int:
        """Return a number that tells the problem from others, given its prompt's tokens."""
        return zlib.crc32(f"{[*tokens]}\0{self.answer}".encode())


class Task(ABC):
    """A source of prompts whose responses can be judged right or wrong.

    Write :meth:`examples` and :meth:`extract_answer`. Override others where needed: :meth:`equivalent` if an answer can
    be written in several ways, :meth:`answer` if it is not a piece of the response (a program has to be run),
    :meth:`keeps_answer` if someone has to compare two responses.

    Attributes
    ----------
    name
        The task's registered name.
    splits
        The splits that :meth:`examples` accepts.
    max_new_tokens
        The longest response that an answer needs.
    scored
        Whether responses are judged; if not, an evaluation only times them.
    ends
        Strings that complete a response: an evaluation ends it there.
    scoring
        Settings of a metric or a judge. An evaluation does not mix answers with different ones.

    Examples
    --------
    >>> class Shout(Task):
    ...     name = "shout"
    ...     splits = ("test",)
    ...     def examples(self, split, n):
    ...         return [Example("Say yes!", "YES")][:n]
    ...     def extract_answer(self, text):
    ...         return text.strip().upper() or None
    >>> task = Shout()
    >>> task.correct(task.examples("test", 1)[0], " yes ")
    True
    """

    name: str
    splits: tuple[str, ...] = ("train", "validation", "test")
    max_new_tokens: int = 160
    scored: bool = True
    ends: tuple[str, ...] = ()
    scoring: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def examples(self, split: str, n: int) -> list[Example]:
        """Return the first ``n`` examples of ``split``, or all if there are fewer; every call gives equal ones."""

    @abstractmethod
    def extract_answer(self, text: str) -> str | None:
        """Return the final answer that ``text`` states, or None."""

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Tell whether two answers mean the same; by default whether they are equal. None matches nothing."""
        return a is not None and a == b

    def check_split(self, split: str) -> None:
        """Refuse a split that this task does not have."""
        if split not in self.splits:
            raise LossyValueError(f"`split` has to be one of {list(self.splits)}, but is {split!r}")

    def user_turn(self, example: Example) -> str:
        """Return the user's turn that asks a chat model for ``example``; by default its prompt."""
        return example.prompt

    def turns(self, example: Example) -> list[dict[str, str]]:
        """Return the conversation for a chat model to continue; by default one :meth:`user_turn`."""
        return [{"role": "user", "content": self.user_turn(example)}]

    def render(self, example: Example, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the text that the model reads: :meth:`turns` in the chat template, if the tokenizer has one."""
        if not tokenizer.chat_template:
            return example.prompt
        return tokenizer.apply_chat_template(self.turns(example), tokenize=False, add_generation_prompt=True)

    def encode(self, example: Example, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Return the token ids of :meth:`render`; a chat template brings its own special tokens."""
        text = self.render(example, tokenizer)
        return tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"]

    def answer(self, example: Example, response: str) -> str | None:
        """Return the answer that ``response`` gives to ``example``."""
        return self.extract_answer(response)

    def keeps_answer(self, example: Example, current_response: str, new_response: str) -> bool:
        """Tell whether ``new_response`` answers as well as ``current_response``.

        AutoJudge (Algorithm 1) asks this for every token at which draft and target differ: a token is unimportant if
        the answer survives its change.
        """
        return self.equivalent(self.answer(example, current_response), self.answer(example, new_response))

    def correct(self, example: Example, response: str) -> bool:
        """Tell whether ``response`` gives the reference answer."""
        return self.equivalent(self.answer(example, response), example.answer)

    def score(self, example: Example, response: str, own: str) -> float:
        """Return a response's score from 0 to 1: by default 1 if it is correct, else 0.

        ``own`` is the response of the reference mode, usually the target alone.
        """
        return float(self.correct(example, response))


class ListedTask(Task):
    """A task with one split, whose examples are at hand."""

    splits = ("test",)
    _examples: list[Example]

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return self._examples[:n]


def read_jsonl(path: str | Path, fields: tuple[str, ...]) -> list[Row]:
    """Return the objects of a JSONL file (``.gz`` too), without empty lines; ``fields`` must be non-empty strings."""
    rows = []
    source = f"`data` ({Path(path).name})"
    for number, row in json_lines(read_text(path, "data"), source):
        where = f"line {number} of {source}"
        for key in fields:
            if not isinstance(row.get(key), str) or not row[key]:
                found = f"holds {brief(row[key])}" if key in row else f"is missing; there are {sorted(row)}"
                raise LossyValueError(f"the field {key!r} has to be a text, but in {where} it {found}")
        rows.append(row)
    if not rows:
        raise LossyValueError(f"`data` ({path}) holds no rows")
    return rows


def prompt_of(row: Row) -> Any:
    """Return a row's ``prompt``, ``question`` or first of ``turns``; None if it has none."""
    value = next((row[name] for name in ("prompt", "question", "turns") if row.get(name)), None)
    return value[0] if isinstance(value, list) else value


def from_hub(dataset: str, config: str | None, split: str) -> Iterable[Row]:
    need("lab", "a task without a file of its own")
    from datasets import load_dataset

    try:
        return load_dataset(dataset, config, split=split)
    except (OSError, ValueError) as error:
        raise LossyValueError(
            f"the data set {dataset!r} can't be loaded from the Hub ({error}); give a local JSONL file as `data`, or "
            "go online once"
        ) from error
