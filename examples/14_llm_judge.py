"""A task of your own, for prompts without a right answer: a language model judges which of two responses is better.

The judge is behind an OpenAI-compatible API. In this folder, with prompts one a line of JSON:

    lossy-assist evaluate --model M --assistant A --data questions.jsonl \\
        --task 14_llm_judge:Preference:model=JUDGE:base_url=http://localhost:8000/v1
"""

import json
import os
import re
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from openai import OpenAI, OpenAIError

from hf_lossy_assist import LossyError, LossyUnsupportedError, LossyValueError
from hf_lossy_assist.tasks import Example, Task

_SYSTEM = """\
You are an impartial judge. You are shown a user's prompt and the responses of two assistants, A and B. Compare how \
well they answer: first whether they are right, then whether they are helpful, relevant, complete and concise. Do not \
let the order in which you see them, their length or their style weigh more than that. Explain your judgement in a \
few sentences, then end with exactly one of these verdicts:
[[A>>B]] assistant A is significantly better
[[A>B]] assistant A is slightly better
[[A=B]] a tie: they are about the same
[[B>A]] assistant B is slightly better
[[B>>A]] assistant B is significantly better"""
_QUESTION = """\
<|The user's prompt|>
{prompt}

<|The start of assistant A's response|>
{first}
<|The end of assistant A's response|>

<|The start of assistant B's response|>
{second}
<|The end of assistant B's response|>"""
_VERDICT = re.compile(r"\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]")
# "significantly" is not told from "slightly": the paper found the difference uninformative.
_FAVOURS_FIRST = {"A>>B": 1, "A>B": 1, "A=B": 0, "B>A": -1, "B>>A": -1}


def verdict(reply: str | None) -> int | None:
    """Return 1 if a reply favours the first response, −1 for the second, 0 for a tie, None without a verdict."""
    found = _VERDICT.findall(reply or "")
    return _FAVOURS_FIRST[found[-1]] if found else None


class Preference(Task):
    """Prompts without a right answer: a response keeps the answer unless a judge finds it worse.

    A language model compares the two responses several times, each time with one of five verdicts (AutoJudge, appendix
    L). The new response is worse, and its token important, if more votes favour the current one. The responses swap
    places from vote to vote, since a judge may prefer the first; the texts decide the order of the first vote. Voting
    stops once the outcome is certain.

    Parameters
    ----------
    data
        A JSONL file with a field ``prompt``, ``question`` or ``turns`` (a list whose first item counts, as in
        MT-Bench), and optionally ``reference`` (a response, or a list of them). By a hash, a fifth of the prompts is
        test and a tenth validation.
    model, base_url
        The judge's name on its server, and the server's address. Its key is in ``OPENAI_API_KEY``, if it needs one.
    votes
        Votes per pair of responses.
    attempts_per_vote
        How often to ask until a reply has a verdict.

    Raises
    ------
    LossyError
        From a comparison, if the judge does not answer or gives no verdict.
    """

    name = "preference"

    def __init__(
        self,
        data: str,
        model: str,
        base_url: str = "https://api.openai.com/v1",
        votes: int = 3,
        attempts_per_vote: int = 3,
    ) -> None:
        for name, value in (("votes", votes), ("attempts_per_vote", attempts_per_vote)):
            if not isinstance(value, int) or value < 1:
                raise LossyValueError(f"`{name}` has to be an int >= 1, but is {value!r}")
        self.model = model
        self.judge = OpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=5)
        self.votes = votes
        self.attempts_per_vote = attempts_per_vote
        self.scoring = {"model": model, "base_url": base_url, "votes": votes}
        self._data = data

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return [example for example in self._examples if _split_of(example.prompt) == split][:n]

    def extract_answer(self, text: str) -> str | None:
        """Return the whole text; only :meth:`keeps_answer` can compare two."""
        return text.strip() or None

    def keeps_answer(self, example: Example, current_response: str, new_response: str) -> bool:
        """Tell whether the judge finds ``new_response`` at least as good as ``current_response``."""
        lead = self._lead(example, current_response, new_response, lambda lead, left: lead > left or lead + left <= 0)
        return lead <= 0

    def score(self, example: Example, response: str, own: str) -> float:
        """Return 1 if the judge finds a response better than ``own``, 0.5 for a tie and 0 for worse.

        The mean is the win rate. An example with a reference is compared with that instead: see :meth:`correct`.
        """
        if example.answer:
            return float(self.correct(example, response))
        lead = self._lead(example, own, response, lambda lead, left: abs(lead) > left)
        return 0.5 if lead == 0 else float(lead < 0)

    def _lead(self, example: Example, current: str, new: str, is_clear: Callable[[int, int], bool]) -> int:
        """Return the votes for the current response minus those for the new one, until the outcome is certain."""
        current, new = current.strip(), new.strip()
        if current == new:
            return 0
        swapped = zlib.crc32(f"{example.prompt}\0{current}\0{new}".encode()) % 2
        lead = 0
        for vote in range(self.votes):
            if (vote + swapped) % 2:
                lead -= self._vote(example, new, current)
            else:
                lead += self._vote(example, current, new)
            if is_clear(lead, self.votes - vote - 1):
                break
        return lead

    def correct(self, example: Example, response: str) -> bool:
        """Tell whether the judge finds ``response`` at least as good as the example's reference."""
        if not example.answer:
            raise LossyUnsupportedError(
                "an open-ended response is right or wrong only beside a reference; give every row of `data` a "
                "`reference`, or compare two responses with `keeps_answer`"
            )
        return self.keeps_answer(example, example.answer, response)

    def _vote(self, example: Example, first: str, second: str) -> int:
        question = _QUESTION.format(prompt=example.prompt, first=first, second=second)
        for _ in range(self.attempts_per_vote):
            reply = self._reply(question)
            if (favoured := verdict(reply)) is not None:
                return favoured
        raise LossyError(
            f"the judge {self.model!r} gave no verdict like [[A>B]] in {self.attempts_per_vote} attempts; "
            f"its last reply ends with {(reply or '')[-200:]!r}"
        )

    def _reply(self, question: str) -> str | None:
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
        try:
            reply = self.judge.chat.completions.create(model=self.model, messages=messages, max_tokens=1024)
        except OpenAIError as error:
            raise LossyError(f"the judge {self.model!r} gave no reply: {error}") from error
        return reply.choices[0].message.content

    @cached_property
    def _examples(self) -> list[Example]:
        lines = Path(self._data).read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line.strip()]
        return [_example(row, number) for number, row in enumerate(rows, start=1)]


def _split_of(prompt: str) -> str:
    share = zlib.crc32(prompt.encode()) / 2**32
    return "test" if share < 0.2 else "validation" if share < 0.3 else "train"


def _first(value: Any) -> Any:
    return next(iter(value), None) if isinstance(value, list) else value


def _example(row: dict[str, Any], number: int) -> Example:
    prompt = _first(row.get("prompt") or row.get("question") or row.get("turns"))
    if not prompt or not isinstance(prompt, str):
        raise LossyValueError(
            f"row {number} of `data` needs a text as `prompt` or `question`, or a list of them as `turns`; "
            f"it has {sorted(row)}"
        )
    reference = _first(row.get("reference") or "")
    return Example(prompt, reference, reference)


if __name__ == "__main__":
    for reply in ("Both are right, but B is rude. [[A>>B]]", "They are about the same. [[A=B]]", "Nice!"):
        print(f"{reply!r} is a vote of {verdict(reply)} for the first response")
