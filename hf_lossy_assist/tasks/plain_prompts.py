"""Prompts without a right answer."""

from __future__ import annotations

from pathlib import Path

from ..errors import LossyValueError
from .task import Example, Task
from .task_data import share


class Prompts(Task):
    """Any texts to continue, one a line: for labels that need no answer, such as SPRINTER's.

    The "answer" of a response is the response. One prompt in ten, by a hash of it, is validation; one is the test.

    Parameters
    ----------
    data
        A text file with one prompt per line.

    Raises
    ------
    LossyValueError
        When the file is missing or has no prompts, or a split is unknown.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "prompts.txt"
    >>> _ = path.write_text("Once upon a time\\nOne day\\nThere was a dog\\n")
    >>> task = Prompts(data=str(path))
    >>> sum(len(task.examples(split, 9)) for split in task.splits)
    3
    """

    name = "prompts"

    def __init__(self, data: str) -> None:
        path = Path(data)
        if not path.is_file():
            raise LossyValueError(f"`data` has to be a text file with one prompt per line, but is {data!r}")
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not texts:
            raise LossyValueError(f"`data` has to hold one prompt per line, but {data!r} has none")
        self._by_split: dict[str, list[Example]] = {split: [] for split in self.splits}
        for text in dict.fromkeys(texts):
            place = share(text)
            split = "test" if place < 0.1 else "validation" if place < 0.2 else "train"
            self._by_split[split].append(Example(text, ""))

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return self._by_split[split][:n]

    def extract_answer(self, text: str) -> str | None:
        return text.strip() or None
