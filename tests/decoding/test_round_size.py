"""A call stays small enough to be read: the functions that a DropMatch round calls, and those before it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import hf_lossy_assist
from hf_lossy_assist.decoding.loop import Decoding

PACKAGE = Path(hf_lossy_assist.__file__).parent
WALKS = {getattr(nn.Module, x).__code__ for x in ("modules", "named_modules", "named_buffers", "named_parameters")}
"""Who asks a large model for all its parts takes milliseconds."""


def test_a_round_is_few_calls_in_few_files(pair, monkeypatch: pytest.MonkeyPatch):
    parts: list[list[str]] = [[]]  # the files of the functions called: before the first round, in it, …
    one_round = Decoding.round

    def begin(self: Decoding) -> None:
        parts.append([])
        one_round(self)

    walks: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if frame.f_code in WALKS and Path(frame.f_back.f_code.co_filename).is_relative_to(PACKAGE):
            walks.append(frame.f_back.f_code.co_qualname)
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
            parts[-1].append(frame.f_code.co_filename)

    inputs = pair.tokenizer("Question: Tom has 24 apples and buys 18 more. How many?\nAnswer:", return_tensors="pt")
    settings = {"assistant_model": pair.draft, "num_assistant_tokens": 5, "lossy_mode": "dropmatch"}
    with hf_lossy_assist.enabled(pair.target):
        pair.target.generate(**inputs, **settings, max_new_tokens=40)  # what a model is asked once is known now
        monkeypatch.setattr(Decoding, "round", begin)
        sys.setprofile(note)
        try:
            pair.target.generate(**inputs, **settings, max_new_tokens=40)
        finally:
            sys.setprofile(None)
    before, _, *rounds = parts[:-1]  # the first round chooses the dropout, and the last one is cut
    assert len(rounds) > 2
    assert max(map(len, rounds)) <= 168
    assert max(len(set(part)) for part in rounds) <= 15
    assert len(before) <= 199
    assert not walks
