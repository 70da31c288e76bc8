"""Draft lengths by name; ending drafts early: each law against a naive one, losslessness, and batches."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.drafting import chain as chains
from hf_lossy_assist.drafting.draft_ends import LONGEST, AcceptanceStop, DraftStop, check_num_tokens
from hf_lossy_assist.generation import config as call_config
from hf_lossy_assist.generation.config import LossyConfig
from hf_lossy_assist.generation.lossy_call import LossyCall
from tests.acceptors.fixtures import verifier_head
from tests.chains import Generating, chain, commit
from tests.parity import assert_lossless
from tests.tiny_models import noisy_copy, padded, prompt, tiny

parse = LossyConfig.from_fields

GREEDY = {"do_sample": False, "max_new_tokens": 40, "eos_token_id": None, "return_dict_in_generate": True}
STOPS = [{"by": "confidence", "threshold": 0.1}, {"by": "acceptance", "threshold": 0.995}]


def by_name(settings: dict) -> str:
    return settings["by"]


def test_acceptance_is_a_product_that_begins_anew_in_every_round():
    q = torch.rand(12, generator=torch.Generator().manual_seed(0)).sqrt()
    q[5] = 0
    stop = AcceptanceStop(threshold=0.6)
    for _ in range(2):
        stop.begin()
        product = 1.0
        for each in q:
            product *= each.item()
            assert stop.goes_on(each.view(1, 1)).item() == (1 - product <= 0.6)


@torch.no_grad()
@pytest.mark.parametrize("settings", STOPS, ids=by_name)
def test_a_draft_ends_with_the_first_token_that_is_unsure(settings):
    model = tiny()
    stop = parse("lossless", {"stop_drafting": settings}).stop_drafting
    lengths = set()
    for seed in range(12):
        ids = prompt(seed=seed)
        drafted = chain(model, 8, stop).propose(ids, None, [99])
        logits, n = drafted.logits, len(drafted)
        naive = parse("lossless", {"stop_drafting": settings}).stop_drafting
        naive.begin()
        q = logits.softmax(-1).gather(-1, drafted.tokens[..., None])[..., 0]
        verdicts = [naive.goes_on(q[:, i : i + 1]).item() for i in range(n)]
        assert all(verdicts[:-1])
        assert n == 8 or not verdicts[-1]
        lengths.add(n)
    assert len(lengths) > 1


class Sure(DraftStop):
    """Each row is sure of its first ``counts`` tokens."""

    def __init__(self, counts: list[int]) -> None:
        self.counts, self.seen = torch.tensor(counts), 0

    def goes_on(self, q: torch.Tensor) -> torch.Tensor:
        at = self.seen + torch.arange(q.shape[1])
        self.seen += q.shape[1]
        return at < self.counts[:, None]


@torch.no_grad()
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("sure", "remaining", "lengths"),
    [
        ([99, 0], [3, 20], (2, 1)), ([99, 2], [3, 20], (2, 3)), ([99, 99], [3, 20], (2, 6)), ([0, 0], [3, 20], None),
        ([99, 1], [1, 20], (0, 2)), ([99, 0], [0, 20], (0, 1)), ([1, 99], [20, 3], None), ([99, 4], [9, 20], (6, 5)),
    ],
)  # fmt: skip
def test_a_batch_s_draft_ends_with_its_rows(sure, remaining, lengths, late, monkeypatch):
    """At a token that the row is unsure of, or where its text is full, whatever it would say about tokens after it."""
    monkeypatch.setattr(chains, "looks_late", lambda device: late)
    ids = torch.cat([prompt(), prompt(seed=1)])
    draft = chain(tiny(), 6, Sure(sure)).propose(ids, None, remaining)
    assert draft.lengths == lengths
    assert len(draft) == max(lengths or [min(sure) + 1])


def assert_less_is_drafted(target, drafting: dict, settings: dict) -> None:
    """... and losslessly in both cases."""
    whole, ended = (
        assert_lossless(target, drafting | {"num_assistant_tokens": 8, "lossy_config": c}, **GREEDY, **padded())[1]
        for c in (None, {"stop_drafting": settings})
    )
    assert ended.lossy_stats.drafted < whole.lossy_stats.drafted


@pytest.mark.parametrize("settings", STOPS, ids=by_name)
def test_lossless_text_stays_plain_and_less_is_drafted(settings):
    target = tiny()
    draft = noisy_copy(target, 0.01)
    assert_less_is_drafted(target, {"assistant_model": draft}, settings)


def test_a_confidence_is_the_option_of_transformers():
    target = tiny()
    draft = noisy_copy(target, 0.01)
    options = GREEDY | {"input_ids": prompt(), "assistant_model": draft, "lossy_mode": "lossless"}
    ours = target.generate(**options, lossy_config={"stop_drafting": {"by": "confidence", "threshold": 0.1}})
    same = target.generate(**options, assistant_confidence_threshold=0.1)
    assert torch.equal(ours.sequences, same.sequences)
    assert ours.lossy_stats.trace == same.lossy_stats.trace


@pytest.fixture
def by_default(monkeypatch):
    """The default of users, which other tests do without; tiny models are surer of less."""
    monkeypatch.setattr(call_config, "AcceptanceStop", lambda threshold: AcceptanceStop(1 - 1e-3))


ROWS = {"one": {"input_ids": prompt()}, "batch": padded()}


@pytest.mark.parametrize("rows", ROWS)
def test_by_default_the_draft_s_own_probabilities_end_drafts(by_default, monkeypatch, rows: str):
    """Whether nothing is said or `"auto"`; as if the user had asked for it, and not where a length is given."""
    target = tiny()
    options = (
        GREEDY | ROWS[rows] | {"assistant_model": noisy_copy(target, 0.01), "lossy_mode": "topk", "pad_token_id": 0}
    )

    def call(stop=None, **more):
        config = {"k": 4, "seed": 1} | ({} if stop is None else {"stop_drafting": stop})
        out = target.generate(**options | more, lossy_config=config)
        return out.sequences.tolist(), out.lossy_stats.trace, out.lossy_stats.drafted

    default = call()
    asked = {"by": "acceptance", "threshold": 1 - 1e-3}
    assert default == call(num_assistant_tokens="auto") == call(asked, num_assistant_tokens=LONGEST)
    fixed = call(num_assistant_tokens=LONGEST)
    assert default[2] < fixed[2]
    assert fixed != default != call(num_assistant_tokens=5)
    drawn = {"do_sample": True, "temperature": 1.1}
    expected = call(**drawn)
    monkeypatch.setattr(chains, "looks_late", lambda device: True)
    assert call() == default, "on a GPU, the token that was drafted before the look is thrown away"
    assert call(**drawn) == expected, "... as if it had not been drawn"


def test_rules_that_keep_more_have_longer_drafts_by_default(default_ends):
    ends = {"lossless": 0.5, "typical": 0.2, "margin": 0.3, ("typical", "lossless"): 0.2, ("margin", "lossless"): 0.3}
    for mode, end in ends.items():
        mode = mode if isinstance(mode, str) else list(mode)
        assert call_config.LossyConfig.from_fields(mode).default_stop.threshold == pytest.approx(1 - end), mode
    assert call_config.LossyConfig.from_fields({"all_of": ["typical", "lossless"]}).default_stop == AcceptanceStop(0.5)
    assert call_config.LossyConfig.from_fields("topk", {"tree": {"depth": 3}}).default_stop is None


def test_other_ways_of_drafting_have_no_default_stop(by_default):
    target = tiny()
    draft = noisy_copy(target)
    for mode, config, more in (
        ("lossless", {}, {"num_assistant_tokens_schedule": "heuristic"}),
        ("lossless", {"tree": {"depth": 3}}, {}),
        ("sprinter", {}, {}),
        ("lossless", {}, {"candidate_generator": Generating(draft, 3)}),
        ("lossless", {}, {"num_assistant_tokens": 5}),
    ):
        head = verifier_head(target, draft) if mode == "sprinter" else None
        call = LossyCall.from_keywords(
            target, {"assistant_model": draft, "lossy_mode": mode, "lossy_config": config, "lossy_head": head, **more}
        )
        assert call.kind.lengths.stop is None
        assert call.kind.lengths.num_assistant_tokens == 5


@pytest.mark.parametrize(
    ("named", "value"),
    [
        ("`by`", {}), ("'acceptance'", {"by": "acceptence"}), ("'threshold'", {"by": "acceptance", "treshold": 0.4}),
        ("`threshold`", {"by": "acceptance", "threshold": 1.5}), ("'stop_drafting'", 0.4),
        ("`threshold`", {"by": "confidence", "threshold": True}),
    ],
)  # fmt: skip
def test_what_is_no_setting_is_refused(named, value):
    with pytest.raises(LossyValueError, match=named):
        parse("lossless", {"stop_drafting": value})


@pytest.mark.parametrize("bad", [0, True, 2.5, "car"])
def test_a_length_is_a_number_of_tokens(bad):
    with pytest.raises(LossyValueError, match="`num_assistant_tokens`"):
        check_num_tokens(bad)


@torch.no_grad()
@pytest.mark.parametrize(("adapts", "expected"), [(True, [4, 6, 5, 4, 3, 2, 1, 1]), (False, [2] * 8)])
def test_a_schedule_follows_what_is_kept(adapts: bool, expected: list[int]):
    drafter, text, sizes = chain(tiny(), 2, adapts=adapts), prompt(), []
    for accepted in (2, 4, 5, 0, 0, 0, 0, 0):
        tokens = drafter.propose(text, None, [99]).tokens
        kept = torch.cat([text, tokens[:, :accepted], tokens[:, :1]], dim=1)
        drafter.observe(commit(kept, text, tokens.shape[1]))
        text, sizes = kept, [*sizes, drafter.size]
    assert sizes == expected
