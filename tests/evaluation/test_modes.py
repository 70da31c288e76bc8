"""The modes, and the arguments that each passes to ``generate()``."""

from __future__ import annotations

import copy
import inspect
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
from transformers import GenerationConfig

from hf_lossy_assist.acceptors import REGISTRY, head_type
from hf_lossy_assist.errors import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.evaluation.evaluation import reference_of
from hf_lossy_assist.evaluation.modes import DecodingMode, by_name, parse_modes, usual_modes
from hf_lossy_assist.evaluation.requests import PromptBatch, run_request
from hf_lossy_assist.evaluation.result import baselines_of
from hf_lossy_assist.generation.config import LossyConfig
from hf_lossy_assist.pairs import Pair
from tests import eagle3_heads
from tests.acceptors.fixtures import any_judge, verifier_head
from tests.tiny_models import noisy_copy, prompt

parse = LossyConfig.from_fields

PLAIN = DecodingMode()


def stock(gamma: int) -> DecodingMode:
    return parse_modes("stock", gamma)[0]


@pytest.fixture(scope="module")
def judged(models):
    head = any_judge(models.target, models.draft, bias=-10.0, scale=0.0)
    return Pair(models.target, models.draft, heads={"judge": head})


def batch(*seeds, seed=0):
    ids = torch.cat([prompt(6, one) for one in seeds or (0,)])
    return PromptBatch(ids, torch.ones_like(ids), seed)


def labels(heads, gamma=5, **options):
    return [mode.label for mode in usual_modes(heads, gamma, **options)]


def test_every_rule_takes_part_that_can_make_a_difference(judged):
    greedy, sampled = labels({}), labels({}, temperature=0.9)
    assert greedy[0] == sampled[0] == "lossless"
    assert {"dropmatch", "topk", "relaxed", "typical", "ensemble"} <= set(greedy)
    assert set(sampled) - set(greedy) >= {"ears"}
    assert not {"judge", "sprinter", "ears"} & set(greedy)
    assert "judge" in labels(judged.heads)
    assert "fly" not in greedy  # its window is longer than a draft of 5 tokens, in which it changes nothing


def test_every_registered_rule_has_settings_or_defaults_that_differ_from_lossless(judged):
    """Greedily or sampling, none of its settings is lossless: else it would never take part."""
    heads = {**judged.heads, "sprinter": verifier_head(judged.target, judged.draft)}
    for name, rule in REGISTRY.items():
        if name == "lossless":
            continue
        assert head_type(rule) is None or name in heads, f"{name} needs a head that this test does not know"
        acceptor = parse(name, dict(rule.usual), heads.get(name)).rule
        assert not (acceptor.is_lossless(False) and acceptor.is_lossless(True)), name
    assert {*labels(heads, 6), *labels(heads, "auto", temperature=0.9)} == set(REGISTRY)


def test_all_of_them_generate(judged):
    texts = {}
    for mode in [PLAIN, stock(4), *usual_modes(judged.heads, 4)]:
        response = run_request(judged, mode, batch(), 12)
        assert response.tokens == 12
        assert (response.stats is None) is (mode.label in (PLAIN.label, "stock"))
        texts[mode.label] = response.rows[0].tolist()
    assert texts[PLAIN.label] == texts["stock"] == texts["lossless"]
    assert texts["judge"] != texts["lossless"], "this judge finds nothing important"


def test_several_rules_share_a_dict_of_heads(judged):
    both = DecodingMode("both", ["judge", "topk"], {"topk": {"k": 2}}, 4)
    assert both.keywords(judged, 7)["lossy_head"] == judged.heads
    assert both.keywords(judged, 7)["lossy_config"] == {"topk": {"k": 2}, "seed": 7}
    assert parse_modes("topk:seed=3")[0].keywords(judged, 7)["lossy_config"] == {"seed": 3}
    assert run_request(judged, both, batch(), 12).stats.accepted_by.keys() == {"judge", "topk"}
    assert DecodingMode(rule={"all_of": ["judge", "topk"]}).rules == both.rules == ["judge", "topk"]
    assert (PLAIN.rules, DecodingMode(rule="topk").rules) == ([], ["topk"])


def test_stock_drafts_gamma_tokens_and_leaves_the_draft_as_it_was(models):
    before = copy.deepcopy(models.draft.generation_config.to_dict())
    for gamma in (2, 6):
        response = run_request(models, stock(gamma), batch(), 40)
        (rounds, *_), (drafted,) = response.work[0], response.drafted
        assert gamma * (rounds - 4) < drafted <= gamma * rounds  # the last ones have less room
    with pytest.raises(RuntimeError, match="midway"), stock(5).prepared(models):
        raise RuntimeError("midway")
    assert models.draft.generation_config.to_dict() == before


def test_what_is_sampled_depends_on_the_seed_of_the_prompt_alone(models):
    state = torch.random.get_rng_state()
    for mode in (PLAIN, stock(5), DecodingMode("lossless", "lossless", gamma=5)):
        hot = replace(mode, temperature=1.5)
        one, again, other = (run_request(models, hot, batch(seed=s), 12).rows[0].tolist() for s in (3, 3, 4))
        assert one == again != other
    assert torch.equal(torch.random.get_rng_state(), state), "torch's own random numbers are left where they were"


def test_a_nucleus_keeps_draws_to_the_likeliest_tokens(models):
    request = batch(seed=1)
    greedy = run_request(models, PLAIN, request, 12).rows[0].tolist()
    for mode in (PLAIN, stock(5), DecodingMode("lossless", "lossless", gamma=5)):
        narrow = replace(mode, temperature=1.5, top_p=1e-6)
        assert run_request(models, narrow, request, 12).rows[0].tolist() == greedy
        assert run_request(models, replace(narrow, top_p=1.0), request, 12).rows[0].tolist() != greedy


def test_modes_are_read():
    plain, stock, several, auto = parse_modes("plain, stock@3,topk@7:k=3:tolerance=0.5,lossless@auto", 5)
    assert (plain.label, stock.label, stock.gamma) == ("plain", "stock@3", 3)
    assert (several.gamma, several.settings, auto.gamma) == (7, {"k": 3, "tolerance": 0.5}, "auto")
    assert parse_modes("stock", "auto")[0].gamma == 5
    assert {mode.temperature for mode in parse_modes("plain,stock,topk", 5, 0.7)} == {0.7}
    draft, everything = parse_modes("draft,everything@9:strict_first_n=4", 5, 0.5)
    assert (draft.answers, draft.gamma, draft.temperature) == ("draft", None, 0.5)
    assert (everything.label, everything.rule) == ("everything@9:strict_first_n=4", "thresholds")
    assert (everything.gamma, everything.settings) == (9, {"threshold_single": 0, "strict_first_n": 4})
    with pytest.raises(LossyValueError, match="without settings, but is 'draft:k=3'"):
        parse_modes("draft:k=3", 5)


def test_transformers_own_drafts_may_end_where_they_are_unsure(models):
    [mode] = parse_modes("stock@3:threshold=0.4", 5)
    assert (mode.label, mode.gamma) == ("stock@3:threshold=0.4", 3)
    assert mode.config == {"threshold": 0.4, "num_assistant_tokens": 3}
    config = models.draft.generation_config
    with mode.prepared(models):
        seen = (config.num_assistant_tokens_schedule, config.assistant_confidence_threshold)
    assert seen == ("constant", 0.4)
    whole, sure = (run_request(models, one, batch(), 40) for one in parse_modes("stock@3,stock@3:threshold=1", 5))
    assert whole.rows[0].tolist() == sure.rows[0].tolist()
    assert sure.drafted[0] < whole.drafted[0]


def test_transformers_own_drafts_on_a_static_cache(models, monkeypatch):
    """Earlier versions than 5.24 fall back to a dynamic cache, and say so."""
    caches = []
    forward = models.target.forward
    name = "cache" if "cache" in inspect.signature(models.target.model.forward).parameters else "past_key_values"
    monkeypatch.setattr(
        models.target, "forward", lambda *args, **more: caches.append(more[name]) or forward(*args, **more)
    )
    on, off = (run_request(models, one, batch(), 20) for one in parse_modes("stock@3:cache=static,stock@3", 5))
    assert (on.rows[0].tolist(), on.work) == (off.rows[0].tolist(), off.work)
    kinds = [type(cache).__name__ for cache in caches]
    assert kinds[-1] == "DynamicCache"
    assert kinds[0] == ("StaticCache" if name == "cache" else "DynamicCache")


def test_a_saved_rule_without_a_draft_length_is_no_target_alone(tmp_path):
    GenerationConfig(lossy_mode="topk").save_pretrained(tmp_path)
    (stored,) = parse_modes(str(tmp_path))
    assert (stored.rule, stored.gamma, stored.is_alone) == ("topk", "auto", False), "as `generate()` reads the file"
    assert reference_of([stored, *parse_modes("lossless")]) == "lossless"
    for mode in (stored, DecodingMode("own", "topk", {"k": 2})):
        assert mode.config["lossy_mode"] == "topk"
        assert mode.label not in baselines_of([mode])["plain"]
    GenerationConfig(lossy_mode="topk", do_sample=True, top_k=0).save_pretrained(tmp_path)
    assert parse_modes(str(tmp_path))[0].temperature == 1.0
    for more in ({"top_k": 3}, {"top_p": 0.5}, {"top_k": None}):
        GenerationConfig(lossy_mode="topk", do_sample=True, **{"top_k": 0, **more}).save_pretrained(tmp_path)
        with pytest.raises(LossyValueError, match="draws by `top_k` or `top_p`"):
            parse_modes(str(tmp_path))


@pytest.mark.parametrize(
    "more",
    [
        {"assistant_confidence_threshold": 0.4},
        {"num_assistant_tokens_schedule": "heuristic"},
        {"repetition_penalty": 2.0},
    ],
)
def test_what_a_folder_says_besides_is_refused_by_name(tmp_path, more):
    GenerationConfig(lossy_mode="topk", eos_token_id=2, max_new_tokens=9, **more).save_pretrained(tmp_path)
    with pytest.raises(LossyValueError, match=f"sets `{next(iter(more))}`, which no mode can say"):
        parse_modes(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "temperature", "message"),
    [
        ("plain:k=3", None, "'plain' without settings"),
        ("stock:k=3", None, r"'stock' has the keys \['threshold', 'cache'\], but not 'k'"),
        ("stock:cache=quantized", None, "`cache of stock` has to be dynamic or static"),
        ("stock:threshold=2", None, "`threshold of stock` has to be a number from 0 to 1"),
    ],
)
def test_settings_without_a_rule_that_are_refused(text, temperature, message):
    with pytest.raises(LossyValueError, match=message):
        parse_modes(text, 5, temperature)


@pytest.mark.parametrize(("mode", "said"), [
    ("stock", "transformers' own loop can't draft with it"), ("draft", "it can't write texts by itself"),
])  # fmt: skip
def test_heads_on_the_target_s_states_are_for_this_package_s_rules(mode, said):
    target, head = eagle3_heads.trained_pair()
    [parsed] = parse_modes(mode)
    with pytest.raises(LossyUnsupportedError, match=f"`draft` is an EAGLE-3 head, and {said}"):
        parsed.check_pair(Pair(target, head))
    parsed.check_pair(Pair(target, noisy_copy(target)))


def test_a_rule_of_one_s_own_is_named_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_rules.py").write_text(
        "from dataclasses import dataclass\n"
        "from hf_lossy_assist.acceptors import Acceptor, setting\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Acceptor):\n"
        "    share: float = setting(0.05, 0, 1)\n"
        "    name = 'mine'\n"
        "    def keep(self, v):\n"
        "        return v.lossless\n"
        "other = len\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    with mock.patch.dict(REGISTRY):
        modes = parse_modes("own_rules:Mine@3:share=0.2,topk+own_rules:Mine,own_rules:Mine")
        assert [(mode.label, mode.rule, mode.gamma) for mode in modes] == [
            ("own_rules:Mine@3:share=0.2", "mine", 3), ("topk+own_rules:Mine", ["topk", "mine"], 5),
            ("own_rules:Mine", "mine", 5),
        ]  # fmt: skip
        assert modes[0].settings == {"share": 0.2}
        assert by_name("topk^own_rules:Mine@auto:mine.share=0.2") == "topk^mine@auto:mine.share=0.2", (
            "as advise spells it"
        )
        for text, said in (("own_rules:other", "which is no rule"), ("own_rules:Nothing", "has no 'Nothing'"),
                           ("no_module:Rule", "importing 'no_module' failed"), ("topk:k", "KEY=VALUE")):  # fmt: skip
            with pytest.raises(LossyValueError, match=said):
                parse_modes(text)
    sys.modules.pop("own_rules")
