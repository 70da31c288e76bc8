"""Processors that advance with every call see what plain generation shows them, whatever is drafted and rejected.

Greedy and lossless: token for token what plain ``generate()`` gives. Otherwise: a text that the automaton accepts.
"""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessor, PreTrainedTokenizerFast, SynthIDTextWatermarkingConfig

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.integrations.transformers_loop import LossyVerification
from hf_lossy_assist.models.own_states import OwnState, copied
from tests.nightly import nightly
from tests.tiny_models import VOCAB, noisy_copy, padded, prompt, tiny

TARGET = tiny("llama")
DRAFT = noisy_copy(TARGET, 0.03)
GREEDY = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None}


class Automaton(LogitsProcessor):
    """Advances with every call, and raises where a call is out of order or a token was forbidden."""

    def __init__(self) -> None:
        self.calls = 0
        self.states: list[int] = []  # one per row

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.calls:
            self.start = input_ids.shape[1]
            self.states = [row % 3 for row in range(len(input_ids))]
        if input_ids.shape[1] != self.start + self.calls:
            raise AssertionError("a call out of order")
        self.advance(input_ids[:, -1].tolist())
        self.calls += 1
        for row, state in enumerate(self.states):
            scores[row, self.forbidden(state)] = -torch.inf
        return scores

    def advance(self, tokens: list[int]) -> None:
        for row, token in enumerate(tokens if self.calls else []):
            if self.forbidden(self.states[row])[token]:
                raise AssertionError("a forbidden token")
            self.states[row] = (3 * self.states[row] + token + self.calls) % 7

    def forbidden(self, state: int) -> torch.Tensor:
        return torch.arange(VOCAB) % 7 != state if state % 2 else torch.arange(VOCAB) % 3 == state % 3


class Lenient(Automaton):
    """Does not raise; rows of any text advance."""

    def advance(self, tokens: list[int]) -> None:
        for row, token in enumerate(tokens if self.calls else []):
            self.states[row] = (3 * self.states[row] + token + self.calls) % 7


def stateful_function():
    """Return a function for ``prefix_allowed_tokens_fn`` that counts its calls by row, in a variable around it."""
    calls: dict[int, int] = {}

    def allowed(row: int, text: torch.Tensor) -> list[int]:
        calls[row] = calls.get(row, 0) + 1
        return [3 + (calls[row] * 7 + row + i) % 50 for i in range(9)]

    return allowed


class Method:
    def __init__(self) -> None:
        self.calls = 0

    def allowed(self, row: int, text: torch.Tensor) -> list[int]:
        self.calls += 1
        return [3 + (self.calls * 7 + i) % 50 for i in range(9)]


PROCESSING = {
    "automaton": lambda: {"logits_processor": [Automaton()]},
    "lenient": lambda: {"logits_processor": [Lenient()]},
    "between others": lambda: {"logits_processor": [Automaton()], "repetition_penalty": 1.3, "suppress_tokens": [9]},
    "function": lambda: {"prefix_allowed_tokens_fn": stateful_function()},
    "SynthID": lambda: {"watermarking_config": SynthIDTextWatermarkingConfig(keys=list(range(30)), ngram_len=4)},
    "method": lambda: {"prefix_allowed_tokens_fn": Method().allowed},
}
DRAFTING = {
    "chain": {"assistant_model": DRAFT},
    "long chain": {"assistant_model": DRAFT, "num_assistant_tokens": 12},
    "tree": {"assistant_model": DRAFT, "lossy_config": {"tree": {"depth": 3, "nodes": 12, "top_k": 4}}},
    "look-up": {"prompt_lookup_num_tokens": 4},
}


def generate(inputs=None, **kwargs):
    inputs = {"input_ids": torch.cat([prompt(9)] * 2, dim=1)} if inputs is None else inputs
    return TARGET.generate(**inputs, **GREEDY | kwargs)


def accepts(text: torch.Tensor, start: int, row: int = 0) -> bool:
    automaton = Automaton()
    for end in range(start, len(text) + 1):
        try:
            automaton(text[None, :end].expand(row + 1, -1), torch.zeros(row + 1, VOCAB))
        except AssertionError:
            return False
    return True


@pytest.mark.parametrize(
    ("processing", "drafting"),
    [
        *(("automaton", drafting) for drafting in DRAFTING), ("lenient", "long chain"), ("between others", "tree"),
        ("function", "look-up"), ("SynthID", "chain"), ("method", "chain"),
    ],
)  # fmt: skip
def test_greedy_text_is_plain_s(processing: str, drafting: str):
    plain = generate(**PROCESSING[processing]())
    ours = generate(**PROCESSING[processing](), **DRAFTING[drafting], lossy_mode="lossless")
    assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize(
    ("mode", "drafting", "do_sample"),
    [
        ("dropmatch", "chain", True), ("dropmatch", "chain", False), ("lossless", "tree", True),
        ("topk", "long chain", False), ("topk", "look-up", True), ("topk", "tree", False), ("typical", "chain", True),
    ],
)  # fmt: skip
def test_every_text_is_accepted(mode: str, do_sample: bool, drafting: str):
    drafting = DRAFTING[drafting]
    config = {"lossy_config": drafting.get("lossy_config", {}) | {"seed": 1}}
    ours = generate(
        **drafting | config, lossy_mode=mode, do_sample=do_sample, logits_processor=[Automaton()], max_new_tokens=40
    )
    assert ours.shape[1] == 58
    assert accepts(ours[0], 18)
    assert not accepts(torch.cat([ours[0], 63 - ours[0, -40:]]), 18)


@pytest.mark.parametrize(
    ("processing", "drafting"),
    [
        ("lenient", "tree"), ("lenient", "look-up"), ("function", "long chain"), ("SynthID", "chain"),
        *nightly([("lenient", "chain"), ("lenient", "long chain"), ("function", "tree")]),
    ],
)  # fmt: skip
def test_rows_of_a_batch_have_states_of_their_own(processing: str, drafting: str):
    plain = generate(padded(), **PROCESSING[processing]())
    ours = generate(padded(), **PROCESSING[processing](), **DRAFTING[drafting], lossy_mode="lossless")
    assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize("processing", [{}, {"repetition_penalty": 1.3}])
def test_a_function_is_told_of_a_text_what_plain_generation_tells(processing: dict):
    call = {"prefix_allowed_tokens_fn": lambda i, text: [*range(3 + 14 * i + len(text) % 3, 14 + 14 * i)]} | processing
    call |= {"do_sample": True, "top_k": 1, "num_return_sequences": 2}  # two rows of each prompt
    plain = generate(padded((7, 5)), **call)
    ours = generate(padded((7, 5)), **call, assistant_model=DRAFT, lossy_mode="lossless")
    assert ours.tolist() == plain.tolist()


def test_stock_s_loop():
    ids = prompt(9)
    plain = TARGET.generate(ids, **GREEDY, logits_processor=[Automaton()])
    with LossyVerification("lossless", TARGET, assistant_model=DRAFT) as hook:
        ours = TARGET.generate(ids, **GREEDY, assistant_model=DRAFT, logits_processor=[Automaton(), hook])
    assert ours.tolist() == plain.tolist()


def test_the_processor_can_be_used_again():
    automaton = Automaton()
    first, second = (
        generate(assistant_model=DRAFT, lossy_mode="lossless", logits_processor=[automaton]) for _ in range(2)
    )
    assert first.tolist() == second.tolist()
    assert automaton.calls == 0


class Uncopyable(LogitsProcessor):
    def __init__(self) -> None:
        self.steps = iter(x for x in range(100))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


class Stateless(Uncopyable):
    def __deepcopy__(self, memo: dict) -> Stateless:
        return self


def test_what_cannot_be_copied_is_refused_before_any_forward(monkeypatch):
    monkeypatch.setattr(TARGET.model, "forward", None)
    with pytest.raises(LossyUnsupportedError, match=r"copy Uncopyable of `logits_processor`.*`__deepcopy__`"):
        generate(assistant_model=DRAFT, lossy_mode="lossless", logits_processor=[Uncopyable()])


def test_a_processor_may_say_that_it_has_no_state():
    ours = generate(assistant_model=DRAFT, lossy_mode="lossless", logits_processor=[Stateless()])
    assert ours.tolist() == generate().tolist()


class RaisesLater(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == 25:
            raise OSError("the disk is full")
        return scores


def test_an_error_in_a_committed_text_is_raised():
    with pytest.raises(OSError, match="the disk is full"):
        generate(assistant_model=DRAFT, lossy_mode="lossless", logits_processor=[RaisesLater()])


class Counting(LogitsProcessor):
    total = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        Counting.total += 1
        return scores


@pytest.mark.parametrize("drafting", [*DRAFTING])
def test_no_text_is_read_again(drafting: str, monkeypatch):
    """Calls grow with the positions of rounds, not with the text; so do the copies kept."""
    monkeypatch.setattr(Counting, "total", 0)
    kept = []
    settle = OwnState.settle
    monkeypatch.setattr(OwnState, "settle", lambda self, text: (settle(self, text), kept.append(len(self._after))))
    out = generate(
        **DRAFTING[drafting], lossy_mode="lossless", logits_processor=[Counting()], max_new_tokens=60,
        return_dict_in_generate=True,
    )  # fmt: skip
    positions = out.lossy_stats.drafted + out.lossy_stats.rounds
    assert 60 <= Counting.total <= 4 * positions
    assert max(kept) < 30


def test_copies_share_models_and_tokenizers():
    class Holder:
        def __init__(self) -> None:
            self.model = TARGET
            self.nested = {"tokenizer": PreTrainedTokenizerFast.__new__(PreTrainedTokenizerFast)}
            self.seen = [1]

    holder = Holder()
    own = copied(holder)
    own.seen.append(2)
    assert own.model is TARGET
    assert own.nested["tokenizer"] is holder.nested["tokenizer"]
    assert holder.seen == [1]
