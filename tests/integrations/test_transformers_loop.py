"""The rules inside stock's loop do what they do in ours."""

from __future__ import annotations

import threading
import warnings
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from transformers import CompileConfig, LogitsProcessorList
from transformers.cache_utils import StaticLayer
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from hf_lossy_assist import LossyVerification
from hf_lossy_assist.errors import LossyError
from tests.acceptors.fixtures import P, Q, chi_square_p
from tests.acceptors.table import ROWS, Row, row_id
from tests.eagle3_heads import random_head
from tests.nightly import nightly
from tests.tiny_models import ARCHITECTURES, VOCAB, constant, noisy_copy, prompt, resized, tiny

GREEDY = {"max_new_tokens": 30, "eos_token_id": None, "do_sample": False}
DRAFTS_ON_STATIC_CACHES = hasattr(StaticLayer, "crop")
"""Whether stock's assisted generation takes static caches, too."""
COUNTS = ("rounds", "drafted", "accepted", "accepted_lossy", "corrected", "bonus", "accepted_histogram", "trace")


def counts(stats) -> dict:
    return {name: getattr(stats, name) for name in (*COUNTS, "accepted_by", "target_calls", "draft_calls", "lossless")}


def stock(hook: LossyVerification, draft, ids=None, **kwargs):
    with hook:
        return hook.target.generate(
            input_ids=prompt() if ids is None else ids, assistant_model=draft, logits_processor=[hook], **kwargs
        )


def ours(target, draft, row: Row, gamma: int, ids=None, **kwargs):
    return target.generate(
        input_ids=prompt() if ids is None else ids,
        assistant_model=draft,
        **row.keywords(target, draft, seed=1),
        num_assistant_tokens=gamma,
        return_dict_in_generate=True,
        **kwargs,
    )


# What a rule reads of the target (logits, states, dropped heads) meets other architectures in a row of each kind.
OTHER_TARGETS = [
    ("lossless", "gemma3"), ("topk", "gpt_neox"), ("judge", "gemma3"), ("judge", "gpt_neox"), ("dropmatch", "gemma3"),
    ("dropmatch", "gpt_neox"),
]  # fmt: skip
# All rules decide by the same code; these read different things of target, draft and text.
KINDS = [row for row in ROWS if row.mode in ("lossless", "ears", "topk", "fsd", "regret", "judge", "dropmatch")]
RUNS = [(row, "llama", 1 if row.mode in ("lossless", "regret") else 6) for row in KINDS]
RUNS += [(row, architecture, 6) for row in KINDS for mode, architecture in OTHER_TARGETS if row.mode == mode]


@pytest.mark.parametrize(("row", "architecture", "gamma"), nightly(RUNS, but=[x for x in RUNS if x[1] != "gpt_neox"]))
def test_greedy_text_and_counts_equal_our_loop_s(row: Row, architecture: str, gamma: int):
    target = tiny(architecture)
    draft = noisy_copy(target)
    mine = ours(target, draft, row, gamma, **GREEDY)
    hook = row.hook(target, draft, num_assistant_tokens=gamma, seed=1)
    assert stock(hook, draft, **GREEDY).tolist() == mine.sequences.tolist()
    assert counts(hook.stats) == counts(mine.lossy_stats)


@pytest.mark.parametrize(
    "own",
    [
        {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic"},
        {"assistant_confidence_threshold": 0.3},
        {"num_assistant_tokens": 9, "assistant_confidence_threshold": 0.5},
    ],
)
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_what_the_models_say_of_drafts_counts_as_in_our_loop(own: dict, whose: str):
    target = tiny()
    draft = noisy_copy(target)
    unsaid = ROWS[0].hook(target, draft)
    stock(unsaid, draft, **GREEDY)
    {"target": target, "draft": draft}[whose].generation_config.update(**own)
    mine, hook = ours(target, draft, ROWS[0], None, **GREEDY), ROWS[0].hook(target, draft)
    assert stock(hook, draft, **GREEDY).tolist() == mine.sequences.tolist()
    assert counts(hook.stats) == counts(mine.lossy_stats) != counts(unsaid.stats)


@pytest.mark.parametrize("row", [row for row in ROWS if row.mode in ("lossless", "topk", "typical")], ids=row_id)
def test_greedy_text_with_stock_s_drafter(row: Row):
    target = tiny()
    draft = noisy_copy(target)
    draft.generation_config.update(num_assistant_tokens=5, assistant_confidence_threshold=0.0, eos_token_id=None)
    # Stock's drafter takes a generated padding token for padding.
    kwargs = GREEDY | {"suppress_tokens": [0]}
    mine = ours(target, draft, row, 5, **kwargs)
    hook = row.hook(target, seed=1)
    assert stock(hook, draft, **kwargs).tolist() == mine.sequences.tolist()
    assert hook.stats.accepted_histogram == mine.lossy_stats.accepted_histogram


@pytest.mark.parametrize("row", [row for row in KINDS if row.config.get("criterion") != "js"], ids=row_id)
def test_prompt_lookup(row: Row):
    target, ids = tiny("llama"), prompt(6).repeat(1, 4)
    if "draft_probs" in row.rule(target).needs:
        with pytest.raises(LossyError, match=f"'{row.mode}'.*assistant_model"):
            row.hook(target)
        return
    hook = row.hook(target, seed=1)
    # Stock drafts beyond the length that fits; where the text ends inside a round, a rule may keep a lossy token where
    # our loop has the target's own.
    tokens = {"judge": 41, "regret": 41}.get(row.mode, 40)
    kwargs = GREEDY | {"max_new_tokens": tokens, "prompt_lookup_num_tokens": 6}
    mine = ours(target, None, row, 5, ids, **kwargs)
    out = stock(hook, None, ids, **kwargs)
    assert out.tolist() == mine.sequences.tolist()
    theirs, own = counts(hook.stats), counts(mine.lossy_stats)
    assert theirs.pop("drafted") >= own.pop("drafted") > 0
    assert theirs == own


@pytest.mark.parametrize("size", [VOCAB - 6, VOCAB + 8])
def test_a_draft_with_other_padding_of_its_vocabulary(size: int):
    target = tiny()
    hook = LossyVerification("lossless", target, assistant_model=resized(noisy_copy(target), size))
    plain = target.generate(prompt(), **GREEDY)
    assert torch.equal(stock(hook, None, prompt(), **GREEDY, prompt_lookup_num_tokens=1), plain)
    assert hook.stats.accepted > 0
    stock(hook, None, prompt(), **GREEDY | {"do_sample": True}, prompt_lookup_num_tokens=1)
    assert hook.stats.accepted > 0


@pytest.mark.parametrize("drafter", ["ours", "stock's"])
def test_lossless_sampling_through_stock_is_the_target_s_law(drafter: str):
    """Warpers come after the user's processors in stock's list, and still count."""
    target, draft = constant(P), constant(Q, seed=5)
    own = {"assistant_model": draft} if drafter == "ours" else {}
    ids = torch.tensor([[1]])
    hook = LossyVerification("lossless", target, seed=3, **own)
    torch.manual_seed(0)
    out = stock(hook, draft, ids, attention_mask=ids, do_sample=True, top_k=0, temperature=0.6, max_new_tokens=600)
    law, counts = np.array(P) ** (1 / 0.6), np.bincount(out[0, 1:], minlength=len(P))
    assert chi_square_p(counts, law / law.sum()) > 1e-5
    assert chi_square_p(counts, np.array(P)) < 1e-5, "the test can tell the two apart"


class First(SinglePositionMultiTokenCandidateGenerator):
    """Always drafts the first token, as Gemma 4's assistants the likeliest, and reports a law all the same."""

    requires_model_outputs = False
    model_kwargs_overrides: ClassVar[dict] = {}

    def __init__(self):
        pass

    def get_candidates(self, input_ids):
        return torch.nn.functional.pad(input_ids, (0, 3)), torch.tensor(Q).log().expand(1, 3, -1)

    def update_candidate_strategy(self, *_):
        pass


def test_a_reported_law_that_nothing_is_drawn_by_counts_for_nothing(monkeypatch):
    target, ids = constant(P), torch.tensor([[1]])
    monkeypatch.setattr(type(target), "_get_candidate_generator", lambda *_, **__: First())
    hook = LossyVerification("lossless", target, seed=3)
    out = stock(hook, target, ids, attention_mask=ids, do_sample=True, top_k=0, max_new_tokens=2000)
    assert hook.stats.accepted > 500
    assert chi_square_p(np.bincount(out[0, 1:], minlength=len(P)), np.array(P)) > 1e-5


def forbid_congruent(input_ids, scores):
    forbidden = torch.arange(scores.shape[-1]) % 3 == input_ids.shape[1] % 3
    return scores.masked_fill(forbidden, -torch.inf)


@pytest.mark.parametrize("first", [True, False], ids=["before the hook", "after the hook"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_other_processors_are_honoured(do_sample: bool, first: bool):
    target = tiny()
    draft = noisy_copy(target)
    hook = LossyVerification("topk", target, assistant_model=draft, k=4, seed=0)
    processors = LogitsProcessorList([forbid_congruent, hook][:: 1 if first else -1])
    with hook:
        out = target.generate(
            prompt(), assistant_model=draft, logits_processor=processors, **GREEDY | {"do_sample": do_sample}
        )
    assert hook.stats.accepted_lossy > 0
    assert all(out[0, position] % 3 != position % 3 for position in range(7, out.shape[1]))


def test_rounds_of_different_length():
    target = tiny("llama")
    draft = noisy_copy(target)
    draft.generation_config.update(num_assistant_tokens=2, num_assistant_tokens_schedule="heuristic")
    draft.generation_config.assistant_confidence_threshold = 0.0
    before = draft.generation_config.to_dict()
    hook = LossyVerification("lossless", target)
    out = stock(hook, draft, **GREEDY)
    assert len(hook.stats.accepted_histogram) > 3
    assert hook.stats.drafted / hook.stats.rounds != int(hook.stats.drafted / hook.stats.rounds)
    assert out.tolist() == target.generate(prompt(), **GREEDY).tolist()
    assert draft.generation_config.to_dict() == before


def test_several_generations_in_one_block():
    target = tiny()
    draft = noisy_copy(target)
    with LossyVerification("topk", target, k=2) as hook:
        runs = [
            target.generate(prompt(seed=s), assistant_model=draft, logits_processor=[hook], **GREEDY) for s in (0, 1)
        ]
        stats = hook.stats
    for seed, run in enumerate(runs):
        alone = LossyVerification("topk", target, k=2)
        assert run.tolist() == stock(alone, draft, prompt(seed=seed), **GREEDY).tolist()
    assert counts(stats) == counts(alone.stats), "the statistics are the last call's"


def hooks_of(model) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


@pytest.mark.parametrize("where", ["processor", "streamer", "forward"])
def test_everything_is_undone_after_a_failure(where: str):
    """Interruptions with our own drafter are a part of the trial."""
    target = tiny()
    draft, attributes, calls = noisy_copy(target), set(vars(target)), []

    def fail(*given):
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError
        return given[-1] if where == "processor" else None

    hook = LossyVerification("dropmatch", target, criterion="naive")
    kwargs: dict = {"logits_processor": [fail, hook] if where == "processor" else [hook]}
    if where == "streamer":
        kwargs["streamer"] = SimpleNamespace(put=fail)
    handle = target.lm_head.register_forward_hook(fail) if where == "forward" else None
    with pytest.raises(ZeroDivisionError), hook:
        target.generate(prompt(), assistant_model=draft, **kwargs, **GREEDY)
    if handle is not None:
        handle.remove()
    assert hooks_of(target) == hooks_of(draft) == 0
    assert set(vars(target)) == attributes
    stock_text = target.generate(prompt(), assistant_model=draft, **GREEDY)
    assert stock_text.tolist() == tiny().generate(prompt(), **GREEDY).tolist()


@pytest.mark.parametrize(
    ("mode", "config", "call", "message"),
    [
        ("topk", {}, {"logits_processor": []}, r"logits_processor=\[hook\]"),
        ("topk", {}, {"assistant_model": None}, "assistant_model"),
        ("topk", {}, {"guidance_scale": 1.5}, "ClassifierFreeGuidance"),
        ("ears", {}, {}, r"'ears'.*assistant_model"),
        ("topk", {"k": 5, "require_lossless": True}, {}, "require_lossless"),
        ("topkk", {}, None, "did you mean 'topk'"),
        ("topk", {"kk": 3}, None, "'kk'"),
        ("fsd", {}, None, r"'fsd'.*assistant_model"),
        ("topk", {"num_assistant_tokens": 4}, None, r"num_assistant_tokens.*4.*`assistant_model`"),
        ("topk", {"num_assistant_tokens": 0, "assistant_model": tiny()}, None, r"num_assistant_tokens.*0"),
        ("topk", {"assistant_model": random_head()}, None, "`assistant_model`.*Eagle3"),
        ("topk", {"assistant_model": "org/draft"}, None, "`assistant_model`.*str"),
    ],
)
def test_misuse_is_reported(mode: str, config: dict, call: dict | None, message: str):
    """A ``call`` of None stands for hooks that can't be made."""
    target = tiny()
    draft = noisy_copy(target)

    def use() -> None:
        with LossyVerification(mode, target, **config) as hook:
            assert call is not None, "it was made"
            target.generate(prompt(), **{"assistant_model": draft, "logits_processor": [hook], **GREEDY, **call})

    with pytest.raises(LossyError, match=message):
        use()


def test_a_hook_counts_in_its_block_alone():
    target = tiny()
    hooks = [LossyVerification("topk", target)]
    with pytest.raises(LossyError, match="with"):
        target.generate(prompt(), assistant_model=noisy_copy(target), logits_processor=hooks)


@pytest.mark.skipif(not DRAFTS_ON_STATIC_CACHES, reason="older versions of transformers don't draft on static caches")
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("row", [row for row in ROWS if row.mode in ("topk", "dropmatch", "judge")], ids=row_id)
def test_static_caches_where_stock_drafts_on_them(row: Row, compiling: bool):
    target = tiny()
    draft = noisy_copy(target)
    kwargs = GREEDY | {"cache_implementation": "static"}
    if compiling:
        kwargs["compile_config"] = CompileConfig(backend="eager", mode=None)
        kwargs["compile_config"]._compile_all_devices = True
    hook = row.hook(target, draft, num_assistant_tokens=5, seed=1)
    mine = ours(target, draft, row, 5, **GREEDY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert stock(hook, draft, **kwargs).tolist() == mine.sequences.tolist()
    assert counts(hook.stats) == counts(mine.lossy_stats)
    assert any("compiling on a static cache has no effect" in str(x.message) for x in caught) == compiling


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropped_heads_leave_stock_its_own_logits(architecture: str):
    """At dropout 0 the rule is lossless, so stock's text and recorded logits are plain generation's."""
    target = tiny(architecture)
    draft = noisy_copy(target)
    kwargs = GREEDY | {"return_dict_in_generate": True, "output_logits": True}
    hook = LossyVerification("dropmatch", target, assistant_model=draft, dropout=0.0)
    out, plain = stock(hook, draft, **kwargs), target.generate(prompt(), **kwargs)
    assert out.sequences.tolist() == plain.sequences.tolist()
    for a, b in zip(out.logits, plain.logits, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_processors_that_write_in_place_count_once():
    def raise_one(input_ids, scores):
        scores[:, 7] += 0.6
        return scores

    target = tiny()
    draft, plain = noisy_copy(target), target.generate(prompt(), logits_processor=[raise_one], **GREEDY)
    with LossyVerification("lossless", target) as hook:
        out = target.generate(prompt(), assistant_model=draft, logits_processor=[raise_one, hook], **GREEDY)
    assert out.tolist() == plain.tolist()


def test_a_draft_that_is_certain_breaks_nothing():
    """Rejected by a bar that nothing clears, the token is often drawn again from p."""
    target, draft = constant([0.6, 0.4]), constant([1 - 1e-9, 1e-9], seed=5)
    ids = torch.tensor([[1]])
    strict = {"epsilon": 1.0, "delta": 1e9, "published": True}
    hook = LossyVerification("typical", target, assistant_model=draft, **strict, seed=0)
    out = stock(hook, draft, ids, attention_mask=ids, do_sample=True, top_k=0, max_new_tokens=500)
    assert hook.stats.accepted == 0
    assert chi_square_p(np.bincount(out[0, 1:], minlength=2), np.array([0.6, 0.4])) > 1e-5


def test_blocks_of_two_threads_do_not_disturb_each_other():
    target = tiny()
    draft = noisy_copy(target)
    first, second = (LossyVerification("topk", target, k=k) for k in (2, 3))
    texts, entered, left = {}, threading.Event(), threading.Event()

    def other():
        with second:
            entered.set()
            left.wait(30)
            texts["other"] = target.generate(prompt(), assistant_model=draft, logits_processor=[second], **GREEDY)

    worker = threading.Thread(target=other)
    with first:
        worker.start()
        entered.wait(30)
        texts["own"] = target.generate(prompt(), assistant_model=draft, logits_processor=[first], **GREEDY)
    left.set()
    worker.join()
    assert "_get_candidate_generator" not in vars(target)
    for name, k in (("own", 2), ("other", 3)):
        alone = stock(LossyVerification("topk", target, k=k), draft, **GREEDY)
        assert texts[name].tolist() == alone.tolist()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # asked for by peft
def test_a_peft_model_as_target():
    import peft

    target = tiny()
    draft = noisy_copy(target)
    adapted = peft.get_peft_model(target, peft.LoraConfig(target_modules=["q_proj"], r=2))
    with LossyVerification("lossless", adapted) as hook:
        out = adapted.generate(input_ids=prompt(), assistant_model=draft, logits_processor=[hook], **GREEDY)
    assert hook.stats.rounds > 0
    assert out.tolist() == adapted.generate(input_ids=prompt(), **GREEDY).tolist()
