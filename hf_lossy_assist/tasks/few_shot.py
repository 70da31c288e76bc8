"""Worked examples before each prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from .task import Example, Task


class FewShot(Task):
    """A task whose prompts may follow worked examples; in a chat these are turns of their own."""

    @property
    @abstractmethod
    def worked(self) -> Sequence[Example]:
        """The worked examples; none of them may be asked."""

    def asked(self, prompt: str) -> str:
        """Return the user's turn for a prompt without worked examples; by default the prompt."""
        return prompt

    def answered(self, example: Example) -> str:
        """Return the assistant's turn of a worked example; by default its solution."""
        return example.solution.strip()

    def user_turn(self, example: Example) -> str:
        return self.asked(example.prompt.removeprefix(self._preamble))

    def turns(self, example: Example) -> list[dict[str, str]]:
        turns = []
        for shot in self.worked:
            turns.append({"role": "user", "content": self.asked(shot.prompt)})
            turns.append({"role": "assistant", "content": self.answered(shot)})
        return turns + super().turns(example)

    def with_shots(self, example: Example) -> Example:
        return Example(self._preamble + example.prompt, example.answer, example.solution)

    @property
    def _preamble(self) -> str:
        return "".join(f"{shot.prompt}{shot.solution}\n\n" for shot in self.worked)


class FewShotTest(FewShot):
    """A test split; its first ``shots`` examples are the worked ones and are not asked."""

    splits = ("test",)

    def __init__(self, examples: Sequence[Example], shots: int = 0) -> None:
        self._worked, self._asked = examples[:shots], examples[shots:]

    @property
    def worked(self) -> Sequence[Example]:
        return self._worked

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return [self.with_shots(example) for example in self._asked[:n]]
