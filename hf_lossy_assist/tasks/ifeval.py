"""Instructions that programs can check (IFEval; Zhou et al., 2023)."""

from __future__ import annotations

import random
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from ..errors import LossyUnsupportedError, LossyValueError
from .task import Example, Task
from .task_data import Row, read_rows

# Their checkers split a text into sentences with a tokenizer whose data nltk downloads.
_SENTENCES = frozenset({"length_constraints:number_sentences", "change_case:capital_word_frequency"})


class IFEval(Task):
    """Prompts with instructions such as "use no commas", checked by the programs of ``if-verifiable``.

    A response is correct if it follows all instructions of its prompt (prompt-level strict accuracy).

    Parameters
    ----------
    data
        A JSONL file or a data set on the Hub with the fields ``prompt``, ``instruction_id_list`` and ``kwargs``.
    loose
        Whether to check a response also without its first line, last line and asterisks.
    sentences
        Whether to keep prompts whose checkers split a text into sentences; they need ``nltk.download("punkt_tab")``.

    Raises
    ------
    LossyUnsupportedError
        Without ``if-verifiable``, or without the data that a prompt needs.
    """

    name = "ifeval"
    splits = ("test",)
    max_new_tokens = 1280

    def __init__(self, data: str = "google/IFEval", loose: bool = False, sentences: bool = True) -> None:
        self.loose = loose
        self.scoring = {"loose": loose}
        self._checkers = _checkers()
        rows = [_checked(row, number) for number, row in enumerate(read_rows(data, None, "train"), start=1)]
        self._rows = [row for row in rows if sentences or not _SENTENCES & {*row["instruction_id_list"]}]
        if any(_SENTENCES & {*row["instruction_id_list"]} for row in self._rows) and not _knows_sentences():
            raise LossyUnsupportedError(
                "splitting a text into sentences needs data of nltk: download them once by "
                "`python -m nltk.downloader punkt_tab`, or leave out these prompts by the task's option "
                "`sentences=false`"
            )

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return [Example(row["prompt"], "") for row in self._rows[:n]]

    def extract_answer(self, text: str) -> str | None:
        return text.strip() or None

    def keeps_answer(self, example: Example, current_response: str, new_response: str) -> bool:
        """Tell whether ``new_response`` follows every instruction that ``current_response`` follows."""
        return self._followed(example, current_response) <= self._followed(example, new_response)

    def correct(self, example: Example, response: str) -> bool:
        _, scores = self._evaluate(example, response)
        return bool(scores.binary_loose if self.loose else scores.binary_strict)

    def _followed(self, example: Example, response: str) -> set[int]:
        """Return the indices of the instructions that a response follows."""
        results, _ = self._evaluate(example, response)
        return {i for i, one in enumerate(results) if (one.loose_pass if self.loose else one.strict_pass)}

    def _evaluate(self, example: Example, response: str) -> tuple[Any, Any]:
        """Return the package's results per instruction, and its scores."""
        if example.prompt not in self._by_prompt:
            raise LossyValueError(f"`example` has to be a prompt of this task, but is {example.prompt[:80]!r}")
        return self._checkers("ifeval", SimpleNamespace(**self._by_prompt[example.prompt]), response)

    @cached_property
    def _by_prompt(self) -> dict[str, Row]:
        return {row["prompt"]: row for row in self._rows}


class _EqualDraws:
    """Replaces the module `random`: every draw has a fresh generator, so equal texts get equal scores."""

    def __getattr__(self, name: str) -> Any:
        return getattr(random.Random(0), name)


def _checkers() -> Any:
    try:
        from if_verifiable import evaluate_output_for_sample
        from if_verifiable.ifeval import instructions, instructions_util
        from langdetect import DetectorFactory
    except ImportError as error:
        raise LossyUnsupportedError(
            "the task 'ifeval' needs the package if-verifiable; install it with "
            "`pip install 'hf-lossy-assist[ifeval]'` (Python >= 3.11)"
        ) from error
    DetectorFactory.seed = 0  # makes its guesses of languages repeatable
    # The checkers draw whatever a row leaves open.
    instructions.random = instructions_util.random = _EqualDraws()
    return evaluate_output_for_sample


def _knows_sentences() -> bool:
    import nltk

    try:
        return bool(nltk.data.find("tokenizers/punkt_tab"))
    except LookupError:
        return False


def _checked(row: Row, number: int) -> Row:
    names, settings = row.get("instruction_id_list"), row.get("kwargs")
    lists = isinstance(names, list) and isinstance(settings, list) and len(names) == len(settings)
    if not isinstance(row.get("prompt"), str) or not lists:
        raise LossyValueError(
            f"row {number} of `data` needs a `prompt`, an `instruction_id_list` and as many `kwargs`; it has "
            f"{sorted(row)}"
        )
    return row
