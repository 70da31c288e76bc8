"""What a text has said before is drafted where that promises more than a model; all else stays as it is."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from hf_lossy_assist.generation.drafters import lookup_first
from hf_lossy_assist.generation.drafters.lookup_first import SHORTEST, LookupFirstDrafter, Repeats, _Row
from tests.acceptors.fixtures import P, Q, chi_square_p
from tests.architectures import family
from tests.eagle3_heads import random_head
from tests.encoder_decoders import made
from tests.nightly import spread
from tests.parity import TIE, assert_lossless
from tests.tiny_models import ARCHITECTURES, constant, noisy_copy, padded, prompt, tiny
from tests.two_tokenizers import BOTH, prompts
from tests.two_tokenizers import pair as pair_of_tokenizers

GREEDY = {"do_sample": False, "max_new_tokens": 60, "eos_token_id": None, "return_dict_in_generate": True}
LOOKUP = {"prompt_lookup_num_tokens": 6, "num_assistant_tokens": 3}


def longest_match(text: list[int]) -> tuple[int, list[int]]:
    """Return the length of the longest match of a text's end, the newest of equal ones, and what follows it."""
    found = (0, [])
    for place in range(len(text) - 1, SHORTEST - 1, -1):
        length = 0
        while length < place and text[place - 1 - length] == text[len(text) - 1 - length]:
            length += 1
        if length >= SHORTEST and length > found[0]:
            found = length, text[place:]
    return found


@pytest.mark.parametrize("letters", [2, 3, 8])
def test_the_longest_match_is_found_by_following_it(letters: int, monkeypatch):
    monkeypatch.setattr(lookup_first, "_PLACES", 10**9)
    choice = random.Random(letters)
    text = [choice.randrange(letters) for _ in range(7)]
    repeats = Repeats(text)
    for _ in range(300):
        length, rest = longest_match(text)
        assert repeats.length == length
        if length:
            periodic = (rest * 9)[:9]  # overlapping itself, it goes on in the same way
            assert repeats.continuation(9) == periodic
        text.append(choice.choice(text[-4:]))
        repeats.follow(text[-1:])


def test_what_is_expected_is_the_closed_form():
    repeats = Repeats([*"abcdefgh", *"Xabc"])
    a = (3 + 0) / (3 + 2 + 0)
    assert repeats.expected(4) == pytest.approx(a + a**2 + a**3 + a**4)
    repeats.follow("dY")  # one match of three goes on; then one of four does not
    repeats.follow("abc")
    a = (3 + 1) / (3 + 2 + 1)
    assert (repeats.length, repeats.expected(2)) == (3, pytest.approx(a + a**2))
    repeats.follow("d")
    a = (4 + 0) / (4 + 2 + 1)
    assert (repeats.length, repeats.expected(2)) == (4, pytest.approx(a + a**2))


# Tokens that two rounds of the model kept; its price; whether three looked-up ones, of which 1.18 are expected, pay.
GATES = [([5, 5], 0.0, False), ([5, 5], 1.0, True), ([0, 0], 0.0, False), ([0, 0], 0.1, True), ([], 1.0, False)]


@pytest.mark.parametrize(("kept", "price", "pays"), GATES)
def test_a_row_looks_up_where_that_promises_more_per_cost(kept: list[int], price: float, pays: bool):
    row = _Row(Repeats("abcdXabc"))
    assert row.repeats.expected(3) == pytest.approx(1.176)
    for n in kept:
        row.rounds, row.kept, row.calls = row.rounds + 1, row.kept + n, row.calls + 5
    others = (1 + (sum(kept) + 5) / (len(kept) + 1)) / (1 + price * 5)  # with a round that kept all of five
    assert pays == (bool(kept) and others < 1 + 1.176)
    assert row.promises_more(3, price) == pays


@pytest.fixture
def rounds(watch_drafts) -> list[tuple[list[bool], torch.Tensor, torch.Tensor]]:
    """Note of each round which rows looked up, the texts, and what was drafted."""
    seen = []

    def note(draft, drafter, ids, layout, _):
        looked = [bool(drafter._rows[row].looks_up) for row in layout.rows]
        lengths = draft.lengths or [len(draft)] * len(ids)
        seen.append((looked, ids.clone(), [tokens[:n] for tokens, n in zip(draft.tokens, lengths, strict=True)]))

    watch_drafts(LookupFirstDrafter, note)
    return seen


@spread(architecture=ARCHITECTURES, batched=[False, True])
def test_the_model_s_cache_has_what_was_looked_up(architecture: str, batched: bool, rounds, looks_up):
    """What it drafts is what it says without a cache, also after rounds in which some rows, or all, looked up."""
    target = tiny(architecture)
    inputs = padded() if batched else {"input_ids": prompt()}
    draft = noisy_copy(target, noise=0.2)
    _, ours = assert_lossless(target, {"assistant_model": draft, **LOOKUP}, **GREEDY, **inputs)
    assert 10 < ours.lossy_stats.looked_up < ours.lossy_stats.drafted - 10
    assert any(len(set(looked)) > 1 for looked, *_ in rounds) == batched
    for looked, texts, drafted in rounds:
        for i in (i for i, there in enumerate(looked) if not there):
            text = torch.cat([texts[i, int(texts[i].ne(0).int().argmax()) :], drafted[i]])[None]
            with torch.no_grad():
                logits = draft(input_ids=text, use_cache=False).logits[0, -len(drafted[i]) - 1 : -1]
            best = logits.amax(-1) - logits.gather(-1, drafted[i][:, None])[:, 0]
            assert (best < TIE).all(), "not what the model says after this text"


DRAFTERS = {
    "a worse model": lambda target: {"assistant_model": noisy_copy(target, noise=0.3)},
    "an EAGLE-3 head": lambda target: {"assistant_model": random_head()},
    "a schedule": lambda target: {"assistant_model": noisy_copy(target), "num_assistant_tokens_schedule": "heuristic"},
    "compiled": lambda target: {"assistant_model": noisy_copy(target), "cache_implementation": "static"},
}


@spread(drafter=DRAFTERS, batched=[False, True])
def test_lossless_parity_with_other_drafters(drafter: str, batched: bool):
    target = tiny("llama")
    inputs = padded() if batched else {"input_ids": prompt()}
    _, ours = assert_lossless(target, LOOKUP | DRAFTERS[drafter](target), **GREEDY, **inputs)
    assert 0 < ours.lossy_stats.looked_up < ours.lossy_stats.drafted


def recurrent():
    return tiny("llama"), {"assistant_model": family("mamba2")[0]}, {"input_ids": prompt()}


def translated():
    target, draft = pair_of_tokenizers()
    keywords = {"assistant_model": draft, **BOTH}
    return target, keywords, dict(prompts("ba mi ko", "du", "la la be do gu"))


def encoded():
    target = made("t5")
    return target, {"assistant_model": noisy_copy(target, 0.01)}, padded()


@pytest.mark.parametrize("made_of", [recurrent, translated, encoded])
def test_lossless_parity_with_drafters_of_single_texts_and_states(made_of, monkeypatch):
    monkeypatch.setattr(lookup_first, "SHORTEST", 1)
    target, keywords, inputs = made_of()
    _, ours = assert_lossless(target, LOOKUP | keywords, **GREEDY | {"max_new_tokens": 30}, **inputs)
    assert 0 < ours.lossy_stats.looked_up < ours.lossy_stats.drafted


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1000), (4, 600)])
def test_sampling_has_the_target_s_law_whatever_a_text_decides(rows: int, tokens: int, looks_up):
    """1,000 tokens, p > 1e-5: catches a law that is off by 0.08 anywhere; a text's tokens are independent."""
    out = constant(P).generate(
        torch.ones(rows, 1, dtype=torch.long), attention_mask=torch.ones(rows, 1), assistant_model=constant(Q, seed=1),
        lossy_mode="lossless", lossy_config={"seed": 0}, do_sample=True, top_k=0, max_new_tokens=tokens,
        return_dict_in_generate=True, **LOOKUP,
    )  # fmt: skip
    stats = out.lossy_stats
    assert 200 < stats.looked_up < stats.drafted - 200
    tokens = out.sequences[:, 1:].numpy()
    assert chi_square_p(np.bincount(tokens.flatten(), minlength=len(P)), np.array(P)) > 1e-5
    pairs = len(P) * tokens[:, :-1] + tokens[:, 1:]
    assert chi_square_p(np.bincount(pairs.flatten(), minlength=len(P) ** 2), np.outer(P, P).flatten()) > 1e-5


def test_rules_that_read_the_target_or_a_point_mass_keep_what_the_text_says():
    target = tiny("llama")
    kwargs = GREEDY | {"input_ids": prompt(), "assistant_model": noisy_copy(target, noise=0.3), **LOOKUP}
    for rule, settings in (("topk", {"k": 3}), ("ensemble", {}), ("dropmatch", {"criterion": "naive"})):
        stats = target.generate(**kwargs, lossy_mode=rule, lossy_config=settings | {"inspect": True}).lossy_stats
        assert stats.looked_up > 0
        assert not stats.lossless
