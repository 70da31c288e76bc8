"""What a task is: prompts, and what "the same answer" means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One prompt with its reference.

    Attributes
    ----------
    prompt
        The text a model is asked to continue.
    answer
        The reference answer, in the form that :meth:`Task.extract_answer` returns.
    solution
        A full reference response, where the task has one (empty otherwise).
    """

    prompt: str
    answer: str
    solution: str = ""


class Task(ABC):
    """A source of prompts whose responses can be judged right or wrong.

    Attributes
    ----------
    name
        The task's registered name.
    splits
        The splits that :meth:`examples` accepts.
    """

    name: str
    splits: tuple[str, ...] = ("train", "validation", "test")

    @abstractmethod
    def examples(self, split: str, n: int) -> list[Example]:
        """Return the first ``n`` examples of ``split``, always the same ones."""

    @abstractmethod
    def extract_answer(self, text: str) -> str | None:
        """Return the final answer that ``text`` states, or None where it states none."""

    @abstractmethod
    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Tell whether two extracted answers mean the same."""
