"""Labels made by people: responses in which the important passages are marked, as for Judge Decoding."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import LossyValueError, brief
from ..heads import ModelIdentity
from ..models.reading import read_text
from ..store.folder import json_lines
from ..store.folder import read_text as text_of
from .examples import Examples, LabelledMismatch, Origin

_FIELDS = {"prompt": str, "response": str, "spans": list}


@dataclass(frozen=True)
class Annotation:
    """An annotated response, from one ``line`` of a file.

    ``spans`` are the characters ``[start, end)`` of the response that matter: its mistakes, in Judge Decoding.
    """

    line: int
    prompt: str
    response: str
    spans: tuple[tuple[int, int], ...]


def read_annotations(path: str | Path) -> list[Annotation]:
    """Read a JSONL file with one object ``{"prompt": …, "response": …, "spans": [[start, end], …]}`` a line.

    An error names the line with a missing or mistyped field, or with a span that is empty, backwards, outside the
    response or overlapping.
    """
    lines = json_lines(text_of(path, "annotations"), "`annotations`")
    annotations = [_annotation(record, number) for number, record in lines]
    if not annotations:
        raise LossyValueError(f"`annotations` has to hold one object a line, but {str(path)!r} is empty")
    return annotations


def _annotation(record: Mapping[str, Any], line: int) -> Annotation:
    where = f"line {line} of `annotations`"
    for name, kind in _FIELDS.items():
        if name not in record:
            raise LossyValueError(f"{where} lacks {name!r}; it has to have {list(_FIELDS)}, and has {list(record)}")
        if not isinstance(record[name], kind):
            raise LossyValueError(f"{name!r} in {where} has to be a {kind.__name__}, but is {brief(record[name])}")
    spans = _spans(record["spans"], len(record["response"]), where)
    return Annotation(line, record["prompt"], record["response"], spans)


def _spans(spans: Sequence[Any], length: int, where: str) -> tuple[tuple[int, int], ...]:
    for span in spans:
        integers = isinstance(span, list) and [type(bound) for bound in span] == [int, int]
        if not integers or not 0 <= span[0] < span[1] <= length:
            raise LossyValueError(
                f"a span in {where} has to be [start, end], two integers with 0 <= start < end <= {length}, the length "
                f"of the response, but is {brief(span)}"
            )
    ordered = sorted(tuple(span) for span in spans)
    for one, two in pairwise(ordered):
        if two[0] < one[1]:
            raise LossyValueError(f"spans in {where} have to be apart, but {list(one)} and {list(two)} overlap")
    return tuple(ordered)


def label(annotation: Annotation, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[bool]]:
    """Tokenise prompt and response as one text, and label the tokens of the response.

    Returns all token ids, the indices of the response's tokens, and whether each of these has a marked character. A
    chat template makes the prompt a user's turn.
    """
    prompt = annotation.prompt
    if tokenizer.chat_template:
        turn = {"role": "user", "content": prompt}
        prompt = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
    special = not tokenizer.chat_template
    encoded = tokenizer(prompt + annotation.response, add_special_tokens=special, return_offsets_mapping=True)
    indices, labels = [], []
    for i, (start, end) in enumerate(encoded["offset_mapping"]):
        if end > max(start, len(prompt)):  # a special token has no characters
            indices.append(i)
            first, last = start - len(prompt), end - len(prompt)
            labels.append(any(first < b and a < last for a, b in annotation.spans))
    return encoded["input_ids"], indices, labels


def annotated_examples(
    annotations: Sequence[Annotation],
    tokenizer: PreTrainedTokenizerBase,
    models: Mapping[str, PreTrainedModel],
    *,
    on_annotation: Callable[[int], None] = lambda done: None,
) -> Examples:
    """Let models read annotated responses, in parallel as at inference, and keep their states.

    Bachmann et al. 2025 (Judge Decoding), section 4.1; Garipov et al. 2025 (AutoJudge), appendix N.

    Every token of a response counts as a drafted one: ``draft`` is the state that has read it, ``previous`` the one
    before. Responses to one prompt never end up on both sides of a split. ``models`` are the ``"target"``, the
    ``"draft"`` or both; ``on_annotation`` gets the number of responses read so far.
    """
    if not tokenizer.is_fast:
        raise LossyValueError(
            f"marked characters need a fast tokenizer, which knows where its tokens stand, but `model` has a "
            f"{type(tokenizer).__name__}"
        )
    states: dict[str, list[torch.Tensor]] = {f"{role}_{at}": [] for role in models for at in ("previous", "draft")}
    labels: list[bool] = []
    prompts: list[int] = []
    numbers: dict[str, int] = {}
    for done, annotation in enumerate(annotations, 1):
        ids, indices, marked = label(annotation, tokenizer)
        if indices and indices[0] == 0:
            raise LossyValueError(f"'prompt' in line {annotation.line} of `annotations` has to be one token or more")
        for role, model in models.items():
            read = read_text(model, ids).states.float().cpu()
            states[f"{role}_draft"].append(read[indices])
            states[f"{role}_previous"].append(read[[i - 1 for i in indices]])
        labels += marked
        prompts += [numbers.setdefault(annotation.prompt, len(numbers))] * len(marked)
        on_annotation(done)
    arrays = {name: torch.cat(rows).numpy() for name, rows in states.items()}
    return Examples(arrays, np.array(labels, dtype=bool), np.array(prompts, dtype=np.int64))


def read_annotated(
    path: Path,
    task: str | None,
    tokenizer: PreTrainedTokenizerBase,
    models: Mapping[str, PreTrainedModel],
    columns: Sequence[str] | None = None,
    *,
    on_annotation: Callable[[int, int], None] = lambda done, total: None,
) -> LabelledMismatch:
    """Read a file's labels with the states in ``columns``, by default all.

    ``models`` are the ``"target"`` and the ``"draft"``; ``task`` is the file's name by default. ``on_annotation`` gets
    the number of responses read so far, and that of all.
    """
    annotations = read_annotations(path)
    readers = {x: model for x, model in models.items() if columns is None or any(c.startswith(x) for c in columns)}
    examples = annotated_examples(
        annotations, tokenizer, readers, on_annotation=lambda done: on_annotation(done, len(annotations))
    )
    data = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "responses": len(annotations),
        "spans": sum(len(annotation.spans) for annotation in annotations),
    }
    identities = {role: ModelIdentity.of(model) for role, model in models.items()}
    return LabelledMismatch(examples, Origin(**identities, task=task or path.stem, data=data))
