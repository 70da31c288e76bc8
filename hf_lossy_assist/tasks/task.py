"""The interface of tasks: prompts, and when two answers are the same."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import LossyValueError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Example:
    """One prompt with its reference.

    Attributes
    ----------
    prompt
        The text a model is asked to continue.
    answer
        The reference answer, in the form that :meth:`Task.answer` returns.
    solution
        A full reference response, where the task has one (empty otherwise).
    """

    prompt: str
    answer: str
    solution: str = ""


class Task(ABC):
    """A source of prompts whose responses can be judged right or wrong.

    Two methods have to be written: :meth:`examples` and :meth:`extract_answer`. The others follow from them and are
    there to be overridden: :meth:`equivalent` where an answer can be written in several ways, :meth:`answer` where it
    is no piece of the response (a program has to be run), :meth:`keeps_answer` where a judge says which of two
    responses is better.

    Attributes
    ----------
    name
        The task's registered name.
    splits
        The splits that :meth:`examples` accepts.
    max_new_tokens
        The longest response that an answer needs, in tokens.
    scoring
        What scores depend on beside the problems: the settings of a metric or a judge. Answers that were scored
        otherwise are not mixed with new ones.

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
    scoring: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def examples(self, split: str, n: int) -> list[Example]:
        """Return the first ``n`` examples of ``split``, always the same ones; fewer where there are fewer."""

    @abstractmethod
    def extract_answer(self, text: str) -> str | None:
        """Return the final answer that ``text`` states, or None where it states none."""

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Tell whether two answers mean the same: by default, if they are equal. None means the same as nothing."""
        return a is not None and a == b

    def check_split(self, split: str) -> None:
        """Refuse a split that this task does not have."""
        if split not in self.splits:
            raise LossyValueError(f"`split` has to be one of {list(self.splits)}, but is {split!r}")

    def user_turn(self, example: Example) -> str:
        """Return what a user would say to a chat model to have ``example`` answered; by default its prompt."""
        return example.prompt

    def turns(self, example: Example) -> list[dict[str, str]]:
        """Return the conversation that a chat model is to continue; by default the one :meth:`user_turn`."""
        return [{"role": "user", "content": self.user_turn(example)}]

    def render(self, example: Example, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the text that the model sees: :meth:`turns` in the tokenizer's chat template, if it has one."""
        if not tokenizer.chat_template:
            return example.prompt
        return tokenizer.apply_chat_template(self.turns(example), tokenize=False, add_generation_prompt=True)

    def encode(self, example: Example, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Return the token ids of :meth:`render`.

        A chat template writes its special tokens itself; only without one does the tokenizer add them.
        """
        text = self.render(example, tokenizer)
        return tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"]

    def answer(self, example: Example, response: str) -> str | None:
        """Return the answer that ``response`` gives to ``example``."""
        return self.extract_answer(response)

    def keeps_answer(self, example: Example, current_response: str, new_response: str) -> bool:
        """Tell whether ``new_response`` is as good an answer as ``current_response``.

        AutoJudge (Algorithm 1) asks this for every token in which draft and target differ: a change that keeps the
        answer is unimportant.
        """
        return self.equivalent(self.answer(example, current_response), self.answer(example, new_response))

    def correct(self, example: Example, response: str) -> bool:
        """Tell whether ``response`` gives the reference answer."""
        return self.equivalent(self.answer(example, response), example.answer)

    def score(self, example: Example, response: str, own: str) -> float:
        """Return how good a response is, from 0 to 1: by default 1 if it is correct, else 0.

        ``own`` is what the mode that all others are compared with responded, usually the target alone.
        """
        return float(self.correct(example, response))


class SeededTask(Task):
    """A task whose problems are drawn; each belongs to one split, whatever the seed.

    Parameters
    ----------
    seed
        Every seed gives other problems; the splits stay disjoint across seeds.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @abstractmethod
    def draw_problem(self, rng: random.Random) -> Any:
        """Return a random problem, which has a ``split``."""

    @abstractmethod
    def word(self, problem: Any, rng: random.Random) -> Example:
        """Put a problem into words."""

    def word_harder(self, problem: Any, rng: random.Random) -> Example:
        """Put a problem into words harder than the task's own, for training."""
        return self.word(problem, rng)

    def examples(self, split: str, n: int) -> list[Example]:
        return self.draw(split, n, random.Random(f"{self.seed}/{split}"))

    def draw(self, split: str, n: int, rng: random.Random, *, harder: bool = False) -> list[Example]:
        """Draw ``n`` examples of ``split`` from a generator of the caller's."""
        self.check_split(split)
        word, examples = self.word_harder if harder else self.word, []
        while len(examples) < n:
            problem = self.draw_problem(rng)
            if problem.split == split:
                examples.append(word(problem, rng))
        return examples
