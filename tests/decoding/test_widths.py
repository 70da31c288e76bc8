"""Models whose forwards depend on more than the tokens: on their width, on the cache they are given, on positions.

Lossless decoding is plain decoding for all of them, whatever drafts, and whether it drafts chains, trees or batches.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, PreTrainedModel

from hf_lossy_assist import last_stats
from hf_lossy_assist.compat.caches import cache_of
from tests.acceptors.fixtures import verifier_head
from tests.architectures import made
from tests.nightly import nightly, spread
from tests.parity import assert_lossless, assert_same_rows
from tests.tiny_models import VOCAB, noisy_copy, padded, prompt, tiny

SWITCH = 24  # positions at which frequencies change
NEW = 40
_FACTORS = [1.0, 1.5, 2.0, 3.0]
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": SWITCH,
    "short_factor": [1.0] * 4, "long_factor": _FACTORS, "factor": 10.0,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
_SCALES = {"short_mscale": 1.0, "long_mscale": 1.2}
_PHI = {"original_max_position_embeddings": SWITCH, "rope_parameters": LONG, "sliding_window": None}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": ("phi3", _PHI),
    "phi3 with windows": ("phi3", _PHI | {"sliding_window": 16}),
    "phimoe": ("phimoe", _PHI | {"rope_parameters": LONG | _SCALES, "num_local_experts": 2}),
    "llama, dynamic": ("llama", {"max_position_embeddings": SWITCH, "rope_parameters": DYNAMIC}),
    "llama, longrope": ("llama", {"rope_parameters": LONG}),
}


def fresh(family: str) -> PreTrainedModel:
    """Return a new model: dynamic frequencies stay as the longest text so far has left them."""
    name, values = FAMILIES[family]
    return made(name, **values).float()


DRAFTERS: dict[str, Callable[[PreTrainedModel], dict[str, Any]]] = {
    "copy": lambda target: {"assistant_model": noisy_copy(target, 0.02), "num_assistant_tokens": 5},
    "default length": lambda target: {"assistant_model": noisy_copy(target, 0.02)},
    "tree": lambda target: {
        "assistant_model": noisy_copy(target, 0.02),
        "lossy_config": {"tree": {"depth": 4, "top_k": 3, "nodes": 8}},
    },
    "look-up": lambda target: {"prompt_lookup_num_tokens": 5},
}


@functools.cache
def plainly(family: str, length: int) -> tuple[PreTrainedModel, dict[str, Any], Any]:
    """Return a model, the arguments of a call, and the target's own output; texts end well behind the switch."""
    target = fresh(family)
    kwargs = {"input_ids": prompt(length), "max_new_tokens": NEW if length < SWITCH - 2 else NEW // 2,
              "do_sample": False, "eos_token_id": None, "pad_token_id": 0,
              "return_dict_in_generate": True}  # fmt: skip
    return target, kwargs, copy.deepcopy(target).generate(**kwargs)


@pytest.mark.filterwarnings("ignore:.*(drafts|Drafts|draft)")
@spread(
    family=FAMILIES,
    case=[
        *itertools.product(("copy", "tree"), (7, SWITCH - 2, SWITCH, SWITCH + 6)),
        *itertools.product(("default length", "look-up"), (7, SWITCH)),
    ],
)
def test_lossless_is_plain(family: str, case: tuple[str, int]):
    drafter, length = case
    model, kwargs, plain = plainly(family, length)
    if cache_of(plain).get_seq_length() < plain.sequences.shape[1] - 1:
        pytest.skip("plain generation itself forgets the text here: older versions")
    target = copy.deepcopy(model)
    ours = target.generate(**kwargs, lossy_mode="lossless", **DRAFTERS[drafter](target))
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert cache_of(ours).get_seq_length() == cache_of(plain).get_seq_length()
    assert ours.lossy_stats.drafted > 0 or "dynamic" in family


@spread(case=itertools.product(["llama, dynamic", "llama, longrope"], [12, 60]), drafter=["copy", "tree", "look-up"])
@pytest.mark.filterwarnings("ignore:.*chooses its rotary frequencies")
def test_batches_are_plain_too(case: tuple[str, int], drafter: str):
    """A batch that ends before the switch drafts; one that may cross it grows as plain generation's does."""
    family, new = case
    kwargs = padded() | {"max_new_tokens": new, "do_sample": False, "eos_token_id": None, "pad_token_id": 0,
                         "return_dict_in_generate": True, "output_logits": True}  # fmt: skip
    plain, target = fresh(family).generate(**kwargs), fresh(family)
    ours = target.generate(**kwargs, lossy_mode="lossless", **DRAFTERS[drafter](target))
    assert_same_rows(ours.sequences, plain)
    assert (ours.lossy_stats.drafted > 0) == (new == 12)


def test_a_warning_says_where_drafting_ends():
    target = fresh("llama, dynamic")
    with pytest.warns(UserWarning, match=r"LlamaForCausalLM chooses its rotary frequencies .* beyond 24 tokens"):
        target.generate(prompt(), max_new_tokens=30, lossy_mode="lossless", **DRAFTERS["copy"](target))


def with_positions(name: str, positions: int) -> PreTrainedModel:
    """Return a model of a family that has so many positions."""
    key, auto = POSITIONS[name]
    return made(name, seed=1, auto=auto, **{key: positions}).float()


POSITIONS = {
    "gpt2": ("n_positions", None),
    "gptj": ("n_positions", None),
    "openai-gpt": ("n_positions", None),
    "roberta": ("max_position_embeddings", None),
    "ctrl": ("n_positions", None),
    "opt": ("max_position_embeddings", None),
    "bart": ("max_position_embeddings", AutoModelForSeq2SeqLM),
    "whisper": ("max_target_positions", AutoModelForSpeechSeq2Seq),
}


@pytest.mark.parametrize(
    ("name", "rows", "tree"),
    [("gpt2", 1, True), ("gpt2", 4, False), ("opt", 1, False), ("bart", 1, False), ("whisper", 1, False),
     ("roberta", 1, False),
     *nightly([("gpt2", 1, False), ("gpt2", 4, True), ("opt", 1, True)])],
)  # fmt: skip
def test_drafts_end_where_the_draft_model_s_positions_end(name: str, rows: int, tree: bool):
    """The rest is decoded without it."""
    target, draft = (with_positions(name, positions) for positions in (64, 30))
    inputs = padded() if rows > 1 else {"input_ids": prompt()}
    if name == "whisper":
        inputs = {"input_features": torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(0))}
    own = dict(draft.named_parameters())
    with torch.no_grad():
        for key, value in target.named_parameters():
            own[key].copy_(value[: len(own[key])])
    shape = {"lossy_config": {"tree": {"depth": 4, "top_k": 2, "nodes": 6}}} if tree else {"num_assistant_tokens": 5}
    assert_lossless(
        target, {"assistant_model": draft, **shape}, **inputs, max_length=60, eos_token_id=None, pad_token_id=0
    )
    stats = last_stats(target)
    assert stats.drafted >= stats.accepted > 0


@pytest.mark.parametrize(
    ("name", "call"),
    [("gpt2", {}), ("gpt2", padded()), ("gpt2", {"cache_implementation": "static"}), ("opt", {}), ("bart", {}),
     ("ctrl", {}), *nightly([("gptj", {}), ("opt", padded())])],
)  # fmt: skip
@pytest.mark.parametrize("drafter", ["a longer text's", "its own"])
def test_a_text_may_end_with_the_target_s_positions(name: str, call: dict, drafter: str):
    """Also where the call would let it be longer: no draft reaches beyond them."""
    target = with_positions(name, 30)
    draft = target if drafter == "its own" else with_positions(name, 64)
    ends = {"prefix_allowed_tokens_fn": lambda _, ids: [2] if len(ids) == 29 else [*range(3, VOCAB)]}
    call = {"input_ids": prompt(), "max_length": 60, "eos_token_id": 2, "pad_token_id": 0} | ends | call
    assert_lossless(target, {"assistant_model": draft, "num_assistant_tokens": 20}, **call)
    assert last_stats(target).drafted > 0


def test_a_text_without_a_cache_may_end_with_the_target_s_positions():
    target = with_positions("openai-gpt", 30)
    ends = {"prefix_allowed_tokens_fn": lambda _, ids: [2] if len(ids) == 29 else [*range(3, VOCAB)]}
    call = {"input_ids": prompt(), "max_length": 60, "eos_token_id": 2, "pad_token_id": 0} | ends
    assert_lossless(target, {"prompt_lookup_num_tokens": 9}, **call)


SPRINTER = {"lossy_mode": "sprinter", "lossy_config": {"max_draft": 7}, "do_sample": False, "eos_token_id": None}
SPRINTER |= {"return_dict_in_generate": True, "pad_token_id": 0}


@pytest.mark.parametrize("rows", ["one", "batch"])
@pytest.mark.parametrize("position", ["previous", "token"])
def test_runs_end_where_the_draft_model_s_positions_end(position: str, rows: str):
    """A verifier that always accepts: the draft commits all tokens but each seventh, up to its last position."""
    torch.manual_seed(0)
    target, draft = (with_positions("gpt2", positions) for positions in (64, 30))
    head = verifier_head(target, draft, position, bias=50.0, scale=0.0)
    inputs = {"input_ids": prompt()} if rows == "one" else padded()
    read = []
    draft.transformer.wpe.register_forward_pre_hook(lambda _, args: read.append(int(args[0].max())))
    out = target.generate(**inputs, **SPRINTER, assistant_model=draft, lossy_head=head, max_length=60)
    width = inputs["input_ids"].shape[1]
    for row, trace in zip(out.sequences, [own.trace for own in last_stats(target).rows], strict=True):
        last = max(i for i, status in enumerate(trace, width) if status == "accepted_lossy")
        assert 24 <= last <= 30
        pads = int((row[:width] == 0).sum()) if rows == "batch" else 0
        best = target(input_ids=row[None, pads:]).logits[0].argmax(-1)
        assert row[last + 2 :].tolist() == best[last + 1 - pads : -1].tolist()
    assert max(read) <= 29


@pytest.mark.parametrize("family", ["llama, dynamic", "llama, longrope"])
@pytest.mark.filterwarnings("ignore:.*chooses its rotary frequencies")
def test_runs_end_where_frequencies_change(family: str):
    """No forward of the target holds tokens of both sides, and under dynamic frequencies each token has its own."""
    target = fresh(family)
    draft = tiny()
    head = verifier_head(target, draft, bias=50.0, scale=0.0)
    ends, widths = [0], []

    def note(_: Any, args: Any, kwargs: Any) -> None:
        widths.append(kwargs["input_ids"].shape[1])
        ends.append(int(kwargs["position_ids"].max()) + 1)

    target.register_forward_pre_hook(note, with_kwargs=True)
    out = target.generate(prompt(), **SPRINTER, assistant_model=draft, lossy_head=head, max_new_tokens=NEW)
    assert not any(start + 1 < SWITCH < end for start, end in itertools.pairwise(ends))
    assert out.lossy_stats.unverified > 0
    if "dynamic" in family:
        assert set(widths[ends.index(max(x for x in ends if x <= SWITCH)) :]) == {1}
        assert out.lossy_stats.trace[SWITCH - 7 + 1 :].count("accepted_lossy") == 0
