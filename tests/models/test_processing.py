"""Processors see at every position what plain generation would show them."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from hf_lossy_assist.core.shapes import Chain
from hf_lossy_assist.models.processing import RowProcessor, process, process_paths

THREE_DRAFTED = Chain(3, torch.device("cpu"))


class Anneal(TemperatureLogitsWarper):
    """A subclass of a prefix-free warper that looks at the prefix after all."""

    def __call__(self, input_ids, scores):
        return scores / input_ids.shape[1]


PROCESSORS = pytest.mark.parametrize(
    "processors",
    [
        [],
        [TemperatureLogitsWarper(0.5), TopKLogitsWarper(3)],
        [RepetitionPenaltyLogitsProcessor(1.5), TemperatureLogitsWarper(0.5)],
        [Anneal(1.0)],
    ],
    ids=lambda processors: "+".join(type(p).__name__ for p in processors) or "none",
)


@PROCESSORS
def test_all_positions_at_once_equal_one_at_a_time(processors):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 9, (1, 8), generator=generator)
    logits = torch.randn(1, 4, 9, generator=generator)
    together = process(LogitsProcessorList(processors), ids, logits.clone(), THREE_DRAFTED)
    for i in range(4):
        alone = LogitsProcessorList(processors)(ids[:, : 5 + i], logits[:, i].clone())
        torch.testing.assert_close(together[:, i], alone)


@PROCESSORS
def test_all_paths_at_once_equal_one_at_a_time(processors):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 9, (2, 8), generator=generator)
    logits = torch.randn(2, 3, 4, 9, generator=generator)
    together = process_paths(LogitsProcessorList(processors), ids, logits.clone(), THREE_DRAFTED)
    for k in range(3):
        alone = process(LogitsProcessorList(processors), ids, logits[:, k].clone(), THREE_DRAFTED)
        torch.testing.assert_close(together[:, k], alone)


class ByNumber(LogitsProcessor):
    """Looks at the row's number and its text."""

    def __call__(self, input_ids, scores):
        return scores + torch.arange(len(scores))[:, None] + input_ids.sum(-1, keepdim=True)


def test_one_row_of_a_batch_keeps_its_number():
    text, scores = torch.tensor([[5, 6, 7]]), torch.randn(1, 9)
    for row in range(4):
        found = RowProcessor(ByNumber(), row, 4)(text, scores.clone())
        torch.testing.assert_close(found, scores + row + text.sum())
