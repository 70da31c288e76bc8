"""Processors of this package's own, beside those of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hf_lossy_assist.compat.processors import NucleusWarper, process_rows_apart, without_observers
from hf_lossy_assist.models.processing import reads_text

VOCABULARY = 5000


def logits(name: str) -> torch.Tensor:
    own = torch.randn(40, VOCABULARY, generator=torch.Generator().manual_seed(0))
    if name == "cut to 20":
        return TopKLogitsWarper(20)(None, 3 * own)
    if name == "mixed":
        return own * torch.linspace(0.1, 6, 40)[:, None]
    return own * {"flat": 0.1, "peaked": 4.0}[name]


@pytest.mark.parametrize("keep", [1, 7, 400])
@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("name", ["flat", "peaked", "mixed", "cut to 20"])
def test_the_nucleus_is_that_of_transformers(name, top_p, keep):
    scores = logits(name)
    options = {"top_p": top_p, "filter_value": -1e4, "min_tokens_to_keep": keep}
    expected = TopPLogitsWarper(**options)(None, scores.clone())
    if name == "cut to 20" and keep == 400:  # which of 4,980 equal logits are kept differs
        assert (NucleusWarper(**options)(None, scores.clone()) > -1e4).sum() == (expected > -1e4).sum()
    else:
        assert torch.equal(NucleusWarper(**options)(None, scores.clone()), expected)


def test_only_wide_nuclei_are_sorted_whole(monkeypatch):
    sorted_rows = []
    sort = torch.sort
    monkeypatch.setattr(torch, "sort", lambda x, **options: sorted_rows.append(len(x)) or sort(x, **options))
    NucleusWarper(0.9)(None, logits("peaked"))
    assert sorted_rows == []
    wide = int((TopPLogitsWarper(0.9)(None, logits("mixed")).isfinite().sum(-1) >= 256).sum())
    sorted_rows.clear()
    NucleusWarper(0.9)(None, logits("mixed"))
    assert 0 < sum(sorted_rows) == wide < 40


def test_a_call_takes_it_in_place_of_transformers_own():
    own = LogitsProcessorList([TemperatureLogitsWarper(0.5), TopPLogitsWarper(0.7, -1e4, 3)])
    taken = without_observers(own)
    assert [type(x) for x in taken] == [TemperatureLogitsWarper, NucleusWarper]
    assert vars(taken[1]) == vars(own[1])
    assert process_rows_apart(taken)
    assert not reads_text(taken)
