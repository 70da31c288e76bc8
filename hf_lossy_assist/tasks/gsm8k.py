"""Grade-school word problems (Cobbe et al., 2021)."""

from __future__ import annotations

import re
import zlib
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from itertools import islice
from pathlib import Path

from ..errors import LossyValueError
from ..values import COUNT
from .task import Example, Row, Task, from_hub, read_jsonl

_FIELDS = ("question", "answer")
_CALCULATION = re.compile(r"<<[^>]*>>")
_NEXT_QUESTION = "\nQuestion:"
_VALIDATION_SHARE = 0.05
_END = "The final answer is {}."
_CHAT = (
    "Given the following problem, reason step by step and give a final answer.\n"
    "Problem: {question}\n"
    f'End your response with "{_END.format("N")}", where N is a number.'
)

_NUMBER = re.compile(
    r"""
    (?: (?<![\w.,)]) (?P<sign> [-−] ) )?             # a minus after a digit or a bracket is a subtraction
    (?: \\?[$€£] \s? (?P<late_sign> [-−] )? )?
    (?P<whole> [0-9]{1,3} (?: ,[0-9]{3} )+ (?![0-9]) | [0-9]+ )?
    (?P<decimals> \.[0-9]+ )?
    (?(whole) | (?(decimals) | (?!) ) )              # at least one of the two
    (?: \s?/\s? (?P<below> [0-9]{1,9} ) (?![0-9/]) )?
    """,
    re.VERBOSE,
)
_MARKER = re.compile(r"#{4}|\banswer\s*(?:is|:|=)", re.IGNORECASE)
# A model that repeats one digit may write a number that is too long for Python to read.
_MAX_DIGITS = 1000


class GSM8K(Task):
    """Word problems whose answer is one number; AutoJudge is mined on them (its section 4.1).

    One in twenty training problems is validation, by a hash of the question: neither order nor seed changes its split.

    Parameters
    ----------
    data
        A JSONL file with the fields ``question`` and ``answer`` (ends in "#### N"), or a folder with ``train.jsonl``,
        ``test.jsonl`` or both; by default ``openai/gsm8k`` on the Hub. A file is the test split if its name contains
        "test", else the training split.
    shots
        The number of training problems that become worked examples before each question and leave their split.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "test.jsonl"
    >>> _ = path.write_text(json.dumps({"question": "What are 2 dozen?", "answer": "12*2=<<12*2=24>>24\\n#### 24"}))
    >>> task = GSM8K(data=str(path))
    >>> task.examples("test", 1)
    [Example(prompt='Question: What are 2 dozen?\\nAnswer:', answer='24', solution=' 12*2=24\\n#### 24')]
    >>> task.equivalent(task.extract_answer("That makes $24.00."), "24")
    True
    """

    name = "gsm8k"

    def __init__(self, data: str | None = None, shots: int = 0) -> None:
        self._files = _files(data)
        if self._files:
            self.splits = tuple(x for x in Task.splits if ("test" if x == "test" else "train") in self._files)
        COUNT.check("shots", shots)
        self.shots = shots
        if shots and "train" not in self.splits:
            raise LossyValueError(
                f"`shots` is {shots}, but `data` has no training split to take them from; give a folder with "
                "`train.jsonl` and `test.jsonl`"
            )
        self._loaded: dict[str, list[Example]] = {}

    def examples(self, split: str, n: int) -> list[Example]:
        if split not in self.splits and self._files:
            found = ", ".join(path.name for path in self._files.values())
            raise LossyValueError(
                f"`split` has to be one of {list(self.splits)}, but is {split!r}: `data` is {found}, and a file is the "
                f"training split unless its name has 'test'; rename it, or give `split={self.splits[0]}`"
            )
        self.check_split(split)
        return [
            Example(self._preamble + example.prompt, example.answer, example.solution)
            for example in islice(self._split(split), n)
        ]

    def extract_answer(self, text: str) -> str | None:
        # A model that does not stop writes a question of its own, whose numbers do not count.
        return final_number(text.split(_NEXT_QUESTION)[0])

    def user_turn(self, example: Example) -> str:
        question = example.prompt.removeprefix(self._preamble).removeprefix("Question: ").removesuffix("\nAnswer:")
        return _CHAT.format(question=question)

    def turns(self, example: Example) -> list[dict[str, str]]:
        """Return the conversation for a chat model to continue, in which each worked example is two turns."""
        turns = []
        for shot in self._worked:
            answered = f"{shot.solution.strip()}\n{_END.format(shot.answer)}"
            turns.append({"role": "user", "content": self.user_turn(shot)})
            turns.append({"role": "assistant", "content": answered})
        return turns + super().turns(example)

    @cached_property
    def _worked(self) -> list[Example]:
        return self._read("train")[: self.shots] if self.shots else []

    @property
    def _preamble(self) -> str:
        return "".join(f"{shot.prompt}{shot.solution}\n\n" for shot in self._worked)

    def _split(self, split: str) -> list[Example]:
        if split == "test":
            return self._read("test")
        # A prompt must not contain its own answer, so worked problems leave the split.
        rest = self._read("train")[self.shots :]
        # A problem is of the validation split by its hash: neither order nor seed changes it.
        end = 2**32 * _VALIDATION_SHARE
        return [one for one in rest if (zlib.crc32(one.prompt.encode()) < end) == (split == "validation")]

    def _read(self, source: str) -> list[Example]:
        if source not in self._loaded:
            path = self._files.get(source)
            rows = from_hub("openai/gsm8k", "main", source) if path is None else read_jsonl(path, _FIELDS)
            self._loaded[source] = [_example(row) for row in rows]
        return self._loaded[source]


def _example(row: Row) -> Example:
    solution = _CALCULATION.sub("", row["answer"])
    answer = final_number(solution)
    if answer is None:
        raise LossyValueError(f"the answer of a row in `data` has to end in '#### N', but is {row['answer'][-80:]!r}")
    return Example(prompt=f"Question: {row['question']}\nAnswer:", answer=answer, solution=f" {solution}")


def _files(data: str | None) -> dict[str, Path]:
    if data is None:
        return {}
    path = Path(data)
    if not path.exists():
        raise LossyValueError(f"`data` has to be an existing file or folder, but there is none at {data!r}")
    if not path.is_dir():
        return {"test" if "test" in path.name else "train": path}
    found = {name: path / f"{name}.jsonl" for name in ("train", "test") if (path / f"{name}.jsonl").is_file()}
    if not found:
        raise LossyValueError(f"`data` ({path}) has to hold train.jsonl or test.jsonl, but has neither")
    return found


def final_number(text: str) -> str | None:
    """Return the number that ``text`` gives as its answer, in a normal form, or None if it has none.

    Markers are "####" and "answer is". The answer is the first number after the last marker with a number after it,
    else the last number. Commas, currency and percent signs, redundant zeros and full stops do not count.

    Examples
    --------
    >>> final_number("16 - 3 - 4 = 9, so the answer is $1,000.00.")
    '1000'
    >>> final_number("#### -2.50"), final_number("The answer is 5/10"), final_number("none")
    ('-2.5', '0.5', None)
    """
    for marker in reversed(list(_MARKER.finditer(text))):
        found = _NUMBER.search(text, marker.end())
        if found:
            return _normal(found)
    numbers = list(_NUMBER.finditer(text))
    return _normal(numbers[-1]) if numbers else None


def _normal(found: re.Match[str]) -> str:
    digits = (found["whole"] or "0").replace(",", "") + (found["decimals"] or "")
    if len(digits) > _MAX_DIGITS:
        return digits
    value = Fraction(digits) / (int(found["below"] or 1) or 1)
    if found["sign"] or found["late_sign"]:
        value = -value
    # Decimals end if the denominator divides a power of ten.
    ends = pow(10, value.denominator.bit_length(), value.denominator) == 0
    return _decimal(value, len(digits)) if ends else str(value)


def _decimal(value: Fraction, digits: int) -> str:
    with localcontext() as context:
        context.prec = digits + 40
        text = f"{Decimal(value.numerator) / value.denominator:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
