"""A row of a batch gets what it would get alone.

Greedy and lossless: token for token (up to ties) what plain ``generate()`` gives the same batch. Sampling: chi-square
at p > 1e-5, which on 6,000 tokens catches an output law that is off by 0.03 in any token.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from hf_lossy_assist.compat.caches import CACHE
from tests.acceptors.fixtures import P, Q, chi_square_p
from tests.acceptors.table import SOME_ROWS, row_id
from tests.architectures import family
from tests.parity import assert_lossless
from tests.tiny_models import LENGTHS, VOCAB, constant, noisy_copy, padded, prompt, prompts, tiny  # fmt: skip

TOKENS = 24
GREEDY = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": None, "return_dict_in_generate": True}


def both(target, draft, inputs=None, gamma=4, **kwargs):
    """Return the outputs of plain generate() and of ours, whose texts are the same."""
    call = GREEDY | (padded() if inputs is None else inputs) | kwargs
    return assert_lossless(target, {"assistant_model": draft, "num_assistant_tokens": gamma}, **call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_a_mask_may_be_of_any_type(dtype: torch.dtype):
    target = tiny("gpt2")
    inputs = {name: value.to(dtype) if name == "attention_mask" else value for name, value in padded().items()}
    both(target, noisy_copy(target), inputs)


def test_rows_end_apart_and_are_padded_on_the_right():
    target = tiny()
    free, _ = both(target, target)
    ends = [int(free.sequences[0, 14]), int(free.sequences[2, 30])]
    plain, ours = both(target, noisy_copy(target, 0.01), eos_token_id=ends, pad_token_id=0)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    lengths = [len(row.trace) for row in ours.lossy_stats.rows]
    assert len(set(lengths)) > 1
    rounds = [row.rounds for row in ours.lossy_stats.rows]
    assert len(set(rounds)) > 1, "rows accept different numbers of tokens"
    assert ours.lossy_stats.target_calls == max(rounds)
    for row, length in zip(ours.sequences[:, max(LENGTHS) :], lengths, strict=True):
        assert (row[length:] == 0).all()
    stats = ours.lossy_stats
    assert stats.trace == tuple(itertools.chain(*(row.trace for row in stats.rows)))
    assert stats.rounds == sum(row.rounds for row in stats.rows) >= stats.target_calls
    assert stats.accepted == sum(row.accepted for row in stats.rows)
    assert sum(stats.accepted_histogram) == stats.rounds


@pytest.mark.parametrize("pad", [-1, VOCAB])
@pytest.mark.parametrize("drafting", [{}, {"prompt_lookup_num_tokens": 3}])
def test_a_padding_token_that_no_model_knows(pad: int, drafting: dict):
    """Plain generation reads it behind a row's end alone; here it would stand before rows that fall behind."""
    target = tiny()
    kwargs = {"input_ids": prompts(), "pad_token_id": pad, "eos_token_id": None, "max_new_tokens": 24}
    assert_lossless(target, {"assistant_model": noisy_copy(target)} | drafting, **kwargs)


def test_rows_that_decode_one_after_another_are_said_to_do_so_once():
    target = family("mamba2")[0]
    kwargs = padded() | {"assistant_model": noisy_copy(target), "lossy_mode": "lossless", "max_new_tokens": 2}
    with pytest.warns(UserWarning, match="rows of a batch are decoded one after another with Mamba2"):
        target.generate(**kwargs)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*one after another")
        target.generate(**kwargs | padded((3, 9)))


class ForbidLast(LogitsProcessor):
    """Looks at the prefix, its length and the row's number."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row, text in enumerate(input_ids):
            scores[row, text[-1]] = -torch.inf
            scores[row, torch.arange(VOCAB) % 7 == (len(text) + row) % 7] = -torch.inf
        return scores


@pytest.mark.parametrize(
    "processing",
    [
        {"logits_processor": LogitsProcessorList([ForbidLast()])},
        {"eos_token_id": list(range(3, 12)), "logits_processor": LogitsProcessorList([ForbidLast()])},  # rows leave
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"min_new_tokens": 20, "eos_token_id": list(range(3, 20))},
        {"prefix_allowed_tokens_fn": lambda row, ids: [3 + (len(ids) * 7 + row) % 40, 4, 5]},
        {"exponential_decay_length_penalty": (5, 1.5), "eos_token_id": 2},
        {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2, "eos_token_id": list(range(3, 12))},
    ],
    ids=lambda processing: next(iter(processing)),
)
def test_processors_see_each_row_s_own_text(processing):
    target = tiny()
    both(target, noisy_copy(target, 0.01), **processing)


@pytest.mark.parametrize("row", SOME_ROWS, ids=row_id)
def test_every_rule_keeps_in_a_batch_what_it_keeps_alone(row):
    target = tiny()
    draft = noisy_copy(target, 0.05)
    kwargs = GREEDY | padded() | {"max_new_tokens": 12}
    out = target.generate(**kwargs, assistant_model=draft, **row.keywords(target, draft, seed=0))
    stats = out.lossy_stats
    assert out.sequences.shape == (4, max(LENGTHS) + 12)
    assert [len(x.trace) for x in stats.rows] == [12] * 4
    if "dropout" in row.config:
        return
    for i in (1, 2):  # deterministic rules keep the same tokens alone; the shortest row and the longest
        length = LENGTHS[i]
        alone = target.generate(
            **(kwargs | {"input_ids": prompt(length, seed=i), "attention_mask": torch.ones(1, length).long()}),
            assistant_model=draft,
            **row.keywords(target, draft, seed=0),
        )
        assert alone.sequences[0].equal(out.sequences[i, max(LENGTHS) - length :])
        assert alone.lossy_stats.trace == stats.rows[i].trace


def constant_batch(mode, do_sample, rows=12, tokens=500, config=None, **kwargs):
    return constant(P).generate(
        input_ids=torch.ones(rows, 1, dtype=torch.long),
        attention_mask=torch.ones(rows, 1, dtype=torch.long),
        assistant_model=constant(Q, seed=5),
        num_assistant_tokens=3,
        lossy_mode=mode,
        lossy_config={"seed": 3, **(config or {})},
        do_sample=do_sample,
        top_k=0,
        max_new_tokens=tokens,
        return_dict_in_generate=True,
        **kwargs,
    )


@pytest.mark.parametrize("threshold", [0.0, 0.3])  # with which drafts have different lengths
def test_lossless_sampling_is_the_target_s_law_in_every_row(threshold: float):
    out = constant_batch("lossless", True, assistant_confidence_threshold=threshold)
    assert len(out.lossy_stats.accepted_histogram) > 2
    tokens = out.sequences[:, 1:].numpy()
    assert chi_square_p(np.bincount(tokens.ravel(), minlength=len(P)), np.array(P)) > 1e-5
    for row in tokens:
        assert chi_square_p(np.bincount(row, minlength=len(P)), np.array(P)) > 1e-5
    # Rows are independent of each other and of themselves.
    pairs = np.bincount((tokens[0::2] * len(P) + tokens[1::2]).ravel(), minlength=len(P) ** 2)
    assert chi_square_p(pairs, np.outer(P, P).ravel()) > 1e-5
    successive = np.bincount((tokens[:, :-1:2] * len(P) + tokens[:, 1::2]).ravel(), minlength=len(P) ** 2)
    assert chi_square_p(successive, np.outer(P, P).ravel()) > 1e-5


def test_limits_hold_row_by_row():
    target = tiny()
    draft = noisy_copy(target, 0.1)
    config = {"k": VOCAB, "budget": 0.2, "strict_first_n": 6}
    out = target.generate(
        **GREEDY, **padded(), assistant_model=draft, lossy_mode="topk", lossy_config=config, num_assistant_tokens=4
    )
    plain = target.generate(**GREEDY, **padded())
    assert out.sequences[:, : 11 + 6].equal(plain.sequences[:, : 11 + 6])
    for row in out.lossy_stats.rows:
        marks = [kind == "accepted_lossy" for kind in row.trace]
        assert not any(marks[:6])
        assert sum(marks) > 0
        assert all(sum(marks[:i]) <= 0.2 * i + 1e-6 for i in range(1, TOKENS + 1))


def test_caches_stay_as_narrow_as_the_texts():
    target, draft = tiny("mistral"), tiny("mistral", seed=4)
    widest = []
    original = target.forward

    def forward(*args, **kwargs):
        out = original(*args, **kwargs)
        widest.append(
            (kwargs["attention_mask"].shape[1], [layer.keys.shape[-2] for layer in getattr(out, CACHE).layers])
        )
        return out

    target.forward = forward
    _, ours = both(target, draft)
    assert ours.lossy_stats.acceptance_rate < 0.5
    for width, layers in widest:
        assert width <= max(LENGTHS) + TOKENS + 4
        widest_layer = max(8 + 4, max(LENGTHS) + 4)
        assert max(layers) <= widest_layer, "rejected and out-of-window states stay behind"


def test_equal_rows_are_never_moved(monkeypatch):
    from hf_lossy_assist.models import runner

    monkeypatch.setattr(runner, "move_cache", lambda *_: pytest.fail("rows that agree were moved"))
    target = tiny()
    _, ours = both(target, target, gamma=3)
    assert ours.lossy_stats.acceptance_rate == 1


def test_a_pipeline_with_a_batch_size():
    from transformers import pipeline

    import hf_lossy_assist

    pair = hf_lossy_assist.pairs.load("arithmetic")
    prompts = [example.prompt for example in pair.task.examples("test", 5)]
    pair.tokenizer.padding_side = "left"
    pipe = pipeline("text-generation", model=pair.target, tokenizer=pair.tokenizer, assistant_model=pair.draft)
    kwargs = {"max_new_tokens": 30, "do_sample": False}
    one_by_one = [out[0]["generated_text"] for out in pipe(prompts, lossy_mode="topk", **kwargs)]
    together = [out[0]["generated_text"] for out in pipe(prompts, batch_size=3, lossy_mode="topk", **kwargs)]
    assert together == one_by_one
    assert len(hf_lossy_assist.last_stats(pair.target).rows) == 2
