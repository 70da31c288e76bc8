"""Completions of responses by a target behind an API: text in, text out (Garipov et al. 2025, appendix R).

The draft works on tokens and a server on text, and one text can be tokenised in several ways. A continuation is
tokenised together with the text before it. If that would change earlier tokens, the continuation is tokenised alone,
and the case is counted.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ..errors import LossyServiceError, LossyValueError
from ..tasks import Task
from ..tasks.api_model import ApiModel
from .prompt_results import Ids, Prompt
from .writing import ResponseCost, ResponseLimits, Writer

_PATIENCE = 0.1  # seconds that a step waits for a completion; meanwhile the draft and the task are not served


@dataclass(frozen=True, eq=False)
class PromptText:
    """A prompt as the text for the server and as the draft's tokens; converts responses between both."""

    tokenizer: PreTrainedTokenizerBase
    text: str
    tokens: Ids

    @classmethod
    def of(cls, prompt: Prompt, task: Task, tokenizer: PreTrainedTokenizerBase) -> PromptText:
        text = task.render(prompt.example, tokenizer)
        bos = tokenizer.bos_token
        # If both template and tokenizer write a BOS, the server's tokenizer adds it.
        if bos and text.startswith(bos) and tokenizer(text)["input_ids"][:2] == [tokenizer.bos_token_id] * 2:
            text = text.removeprefix(bos)
        return cls(tokenizer, text, prompt.tokens)

    def write(self, prefix: Ids) -> str:
        """Return the text of prompt and ``prefix``, which has to end with a whole character."""
        before, after = (
            self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            for ids in (self.tokens, (*self.tokens, *prefix))
        )
        if not after.startswith(before) or after.endswith("\ufffd"):
            raise LossyValueError("a token is only a part of a character, which can't be sent to a server as text")
        return self.text + after.removeprefix(before)

    def read(self, prefix: Ids, addition: str) -> tuple[Ids, bool]:
        """Return the response's tokens, and whether its whole text is tokenised differently."""
        text = self.write(prefix) + addition
        before = (*self.tokens, *prefix)
        ids = tuple(self.tokenizer(text)["input_ids"])
        if ids[: len(before)] == before:
            return ids[len(self.tokens) :], False
        return (*prefix, *self.tokenizer(addition, add_special_tokens=False)["input_ids"]), bool(addition)


@dataclass(eq=False)
class ApiWriter(Writer):
    """A writer that sends up to ``slots`` requests at once to a server.

    A response that the server ends gets the tokenizer's EOS.
    """

    model: ApiModel
    task: Task
    tokenizer: PreTrainedTokenizerBase
    limits: ResponseLimits
    slots: int

    def __post_init__(self) -> None:
        self._slots: dict[int, tuple[PromptText, ResponseCost]] = {}
        self._open: dict[Future[tuple[str, bool] | None], tuple[int, Ids]] = {}
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="target-api")

    def begin(self, slot: int, prompt: Prompt, cost: ResponseCost) -> None:
        self._slots[slot] = PromptText.of(prompt, self.task, self.tokenizer), cost

    def end(self, slot: int) -> None:
        del self._slots[slot]

    def submit(self, slot: int, prefix: Ids) -> None:
        if self.limits.over(prefix):
            future: Future[tuple[str, bool] | None] = Future()
            future.set_result(None)
        else:
            room = self.limits.max_new_tokens - len(prefix)
            future = self._pool.submit(self.model.complete, self._slots[slot][0].write(prefix), room)
        self._open[future] = (slot, prefix)

    def busy(self) -> bool:
        return bool(self._open)

    def step(self) -> list[tuple[int, Ids]]:
        finished, _ = wait(self._open, _PATIENCE, return_when=FIRST_COMPLETED)
        return [self._response(*self._open.pop(future), future) for future in finished]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.model.client.close()

    def _response(self, slot: int, prefix: Ids, future: Future[tuple[str, bool] | None]) -> tuple[int, Ids]:
        try:
            completion = future.result()
        except LossyServiceError as error:
            raise LossyServiceError(f"{error}; what was mined is kept: the same command goes on from there") from error
        if completion is None:
            return slot, prefix
        text, ended = completion
        prompt, cost = self._slots[slot]
        response, otherwise = prompt.read(prefix, text)
        response = (*response, *([self.tokenizer.eos_token_id] if ended else []))[: self.limits.max_new_tokens]
        cost.retokenised += otherwise
        cost.target_tokens += len(prompt.tokens) + len(response) - 1
        return slot, response
