"""Shows logits processors with a state of their own what plain ``generate()`` shows them, whatever is drafted."""

from __future__ import annotations

import copy
import time
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase

from ..compat.processors import (
    copies_of_grammar_parts,
    is_grammar_part,
    process_row,
    reads_only_text,
    with_grammar_of_row,
)
from ..errors import LossyUnsupportedError, warn_once

SLOW = 0.02
"""Seconds of a copy from which on the user is told."""

MANY = 1000
"""Elements from which on a container holds data, not parts."""


@dataclass(frozen=True, eq=False)
class _Reached:
    """A processor after a text; with an ``error``, it refused the text, and so all that go on from it."""

    processor: Any
    error: Exception | None = None


class OwnState(LogitsProcessor):
    """Keeps a copy of a processor for every text of the round, and goes on from the one before.

    A processor may count its calls or advance with each. So every copy is called as plain ``generate()`` calls the
    processor: once after each token, in order. The processor itself is never called. Target and draft share the
    copies, and the target's calls replace the draft's.

    A drafted token may be one that the processor forbids, where it may raise. The scores of such texts stay as they
    are, because no rule keeps the token. The error is raised where the text is committed.

    ``prompt`` is the length of the prompts. In a ``batch``, the copies of a ``row`` see its text as that of all rows.
    """

    def __init__(self, processor: Any, prompt: int, row: int = 0, batch: int = 1) -> None:
        self.processor = processor
        self.prompt = prompt
        self.row = row
        self.batch = batch
        self._after: dict[tuple[int, ...], _Reached] = {}
        self._committed = 0
        self._rows: dict[int, OwnState] = {}

    def of_row(self, row: int, batch: int) -> OwnState:
        """Return the one for a row, the same at every call."""
        if batch == 1:
            return self
        if row not in self._rows:
            own = with_grammar_of_row(self.processor, row, batch)
            place = (self.processor, self.prompt, row, batch) if own is None else (own, self.prompt)
            self._rows[row] = OwnState(*place)
        return self._rows[row]

    def settle(self, text: Tensor) -> None:
        """Drop the copies that no text can go on from, now that ``text`` ``(1, L)`` is committed."""
        self._committed = text.shape[1]
        before = tuple(text[0, :-1].tolist())
        self._after = {own: reached for own, reached in self._after.items() if own[: len(before)] == before}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        text = tuple(input_ids[0].tolist())
        start = len(text) - 1
        while start >= self.prompt and text[:start] not in self._after:
            start -= 1
        reached = self._after[text[:start]] if start >= self.prompt else _Reached(self.processor)
        for length in range(max(start, self.prompt - 1) + 1, len(text)):  # texts that nobody asked about
            reached, _ = self._step(reached, input_ids[:, :length], text[:length], torch.zeros_like(scores))
            self._after[text[:length]] = reached
        reached, scores = self._step(reached, input_ids, text, scores)
        self._after[text] = reached
        if reached.error is not None and len(text) <= self._committed:
            raise reached.error
        return scores

    def _step(self, before: _Reached, ids: Tensor, text: tuple[int, ...], scores: Tensor) -> tuple[_Reached, Tensor]:
        if before.error is not None:
            return before, scores
        processor = copied(before.processor, text[self.prompt : -1])
        try:
            result = process_row(processor, self.row, self.batch, ids, scores.clone())
        except Exception as error:
            return _Reached(None, error), scores
        return _Reached(processor), result


def with_own_states(user: str, processors: LogitsProcessorList, prompt: int) -> LogitsProcessorList:
    """Return processors that may be asked about drafted and rejected tokens in any order.

    ``prompt`` is the length of the prompts. Raises before any forward pass if a processor can't be copied; ``user``
    names who needs the copies.
    """
    return LogitsProcessorList([_own_state(user, processor, prompt) for processor in processors])


def _own_state(user: str, processor: Any, prompt: int) -> Any:
    if reads_only_text(processor):
        return processor
    start = time.perf_counter()
    try:
        has_state = copied(processor) is not processor
    except Exception as error:
        raise LossyUnsupportedError(
            f"{user} has to copy {type(processor).__name__} of `logits_processor`, which may keep a state from token "
            f"to token, but can't ({type(error).__name__}: {error}); give its class a `__deepcopy__` method that "
            "copies the state, or that returns `self` if it has none"
        ) from error
    if (seconds := time.perf_counter() - start) > SLOW:
        warn_once(
            f"{user} copies {type(processor).__name__} of `logits_processor` for every drafted token, because it may "
            f"keep a state; a copy takes {seconds * 1000:.0f} ms. Give the class of its large parts a `__deepcopy__` "
            "method that returns `self`, if they never change"
        )
    return OwnState(processor, prompt) if has_state else processor


def grammar_in(processors: LogitsProcessorList) -> Any:
    """Return the first processor that belongs to a library of grammars, or None."""
    own = [processor.processor if isinstance(processor, OwnState) else processor for processor in processors]
    return next((each for each in own if any(map(is_grammar_part, _parts(each, set())))), None)


def copied(processor: Any, tokens: Iterable[int] = ()) -> Any:
    """Return a copy of a processor or function with a state of its own; models and tokenizers are shared.

    ``tokens`` are the generated ones that it has seen.
    """
    parts = list(_parts(processor, set()))
    memo = {id(part): part for part in parts if isinstance(part, _SHARED)}
    return _copied(processor, memo | copies_of_grammar_parts(parts, tokens))


_SHARED = (nn.Module, PreTrainedTokenizerBase, types.ModuleType)
"""No processor changes them."""


def _copied(processor: Any, memo: dict[int, Any]) -> Any:
    if isinstance(processor, types.FunctionType):
        return _copied_function(processor, memo)
    result = copy.deepcopy(processor, memo)
    if result is not processor:
        for name, part in getattr(result, "__dict__", {}).items():
            if isinstance(part, types.FunctionType):
                vars(result)[name] = _copied_function(part, memo)
    return result


def _copied_function(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """Copy what a function remembers in variables around it, which ``deepcopy`` shares."""
    if not function.__closure__:
        return function
    cells = tuple(types.CellType() for _ in function.__closure__)
    result = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    result.__kwdefaults__ = function.__kwdefaults__
    memo[id(function)] = result
    for cell, own in zip(cells, function.__closure__, strict=True):
        with_value = _value(own)
        if with_value:
            cell.cell_contents = memo.get(id(with_value[0])) or _copied(with_value[0], memo)
    return result


def _value(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not assigned yet
        return ()


def _parts(value: Any, seen: set[int], depth: int = 4) -> Iterator[Any]:
    """Find what a processor holds in attributes, containers, and variables around functions."""
    if id(value) in seen or depth == 0 or isinstance(value, str | bytes | int | float | Tensor | type):
        return
    seen.add(id(value))
    yield value
    if isinstance(value, _SHARED):
        return
    parts: list[Any] = list(getattr(value, "__dict__", {}).values())
    if isinstance(value, types.FunctionType):
        parts += [part for cell in value.__closure__ or () for part in _value(cell)]
    elif isinstance(value, types.MethodType):
        parts.append(value.__self__)
    elif isinstance(value, dict) and len(value) < MANY:
        parts += value.values()
    elif isinstance(value, list | tuple | set) and len(value) < MANY:
        parts += value
    for part in parts:
        yield from _parts(part, seen, depth - 1)
