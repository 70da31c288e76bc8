"""Evaluations: all modes answer the same problems, and what was answered before is not answered again."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace

import pytest
import torch
from accelerate import disk_offload

import hf_lossy_assist
from hf_lossy_assist import LossyUnsupportedError, LossyValueError, enabled
from hf_lossy_assist.evaluation import evaluation as module
from hf_lossy_assist.evaluation.answers import RESULTS, AnswerStore, load_answers
from hf_lossy_assist.evaluation.evaluation import Evaluation, reference_of
from hf_lossy_assist.evaluation.modes import DecodingMode, parse_modes
from hf_lossy_assist.evaluation.requests import Response
from hf_lossy_assist.evaluation.result import EvaluationResult
from hf_lossy_assist.heads import JudgeHead
from hf_lossy_assist.pairs import Pair
from hf_lossy_assist.store.folder import Process
from hf_lossy_assist.tasks import Arithmetic
from hf_lossy_assist.tasks.prompts import PromptList
from tests.acceptors.table import judge_head
from tests.eagle3_heads import layer, random_head
from tests.evaluation.parts import Numbers, Words
from tests.small_pair import PROBLEMS, changed
from tests.tiny_models import resized

MODES = "plain,stock,lossless,topk:k=3"


@pytest.fixture(scope="module")
def evaluation(pair):
    modes = parse_modes(MODES, 3)
    return Evaluation(pair, modes, "plain", PROBLEMS)


class Nothing(Arithmetic):
    def examples(self, split, n):
        return []


def answered(evaluation, store=None):
    return list(evaluation.run(store))


def untimed(answers):
    return [replace(answer, seconds=0.0) for answer in answers]


@pytest.fixture(scope="module")
def whole(evaluation):
    store = AnswerStore()
    answered(evaluation, store)
    return evaluation.result(store)


def test_scores_are_the_task_s_and_work_is_counted(whole, pair):
    assert list(whole.modes) == MODES.split(",")
    assert [(a.mode, a.id) for a in whole.answers] == [(m, i) for m in MODES.split(",") for i in range(PROBLEMS)]
    plain, stock, lossless, _ = ([a for a in whole.answers if a.mode == label] for label in MODES.split(","))
    assert [a.score for a in plain] == [0, 1] * 3
    assert [a.text for a in plain] == [a.text for a in lossless] == [a.text for a in stock]
    assert all((a.rounds, a.accepted) == (a.tokens, 0) for a in plain)
    assert all(a.rounds + a.accepted == a.tokens for a in stock)
    assert all(a.tokens - 1 <= a.rounds + a.accepted <= a.tokens for a in lossless)
    assert whole.modes["plain"].tokens_per_round == 1
    assert 1 < whole.modes["stock"].tokens_per_round == pytest.approx(whole.modes["lossless"].tokens_per_round, rel=0.2)
    baselines = {"plain": ["plain"], "stock": ["stock"], "lossless": ["lossless"]}
    assert whole.modes == EvaluationResult.of(whole.answers, "plain", baselines).modes
    assert all(a.seconds > 0 for a in whole.answers)


def test_batches_and_processes_answer_the_same(evaluation, whole):
    modes = [mode for mode in evaluation.modes if mode.label != "stock"]
    store = AnswerStore()
    shares = []
    for number in range(2):
        share = replace(evaluation, modes=modes, batch_size=2, process=Process(number, 2))
        shares.append(answered(share, store))
    assert [len(share) for share in shares] == [4, 2]
    result = replace(evaluation, modes=modes).result(store)
    assert untimed(result.answers) == untimed(a for a in whole.answers if a.mode != "stock")


def test_problems_come_as_soon_as_all_modes_have_answered(evaluation, requests):
    first = next(evaluation.run())
    assert list(first) == MODES.split(",")
    assert requests == [("plain", 1), ("stock", 1), ("lossless", 1), ("topk:k=3", 1)]


def test_all_modes_answer_a_batch_before_the_next_and_go_first_in_turn(evaluation, requests):
    answered(replace(evaluation, reference="lossless", limit=3))
    groups = [[label for label, _ in requests[i : i + 4]] for i in range(0, 12, 4)]
    assert all(sorted(group) == sorted(MODES.split(",")) for group in groups)
    assert [group[0] for group in groups] == ["plain", "stock", "lossless"]


@pytest.mark.parametrize("size", [1, 4])
def test_a_run_that_was_killed_goes_on(evaluation, requests, tmp_path, size):
    modes = [mode for mode in evaluation.modes if mode.label != "stock"]
    evaluation = replace(evaluation, modes=modes, batch_size=size)
    whole = AnswerStore()
    answered(evaluation, whole)
    store = AnswerStore(tmp_path, evaluation.plan())
    next(evaluation.run(store))
    path = tmp_path / RESULTS
    path.write_bytes(path.read_bytes()[:-9])  # the last answer lacks its end
    requests.clear()
    again = AnswerStore(tmp_path, evaluation.plan())
    answered(evaluation, again)
    # Only the batch of the lost answer is answered again, and only by that mode.
    assert len(requests) == 3 * len(evaluation.batches) - 2
    answers = load_answers(tmp_path)[1]
    assert len({(a.mode, a.id) for a in answers}) == len(answers) == 3 * PROBLEMS
    assert untimed(evaluation.result(again).answers) == untimed(evaluation.result(whole).answers)
    more = replace(evaluation, modes=[*modes, DecodingMode("typical", "typical", gamma=3)])
    requests.clear()
    answered(more, AnswerStore(tmp_path, more.plan()))
    assert {label for label, _ in requests} == {"typical"}


def test_the_folder_holds_answers_and_summary(pair, whole, tmp_path):
    options = {"tokenizer": pair.tokenizer, "task": pair.task, "gamma": 3, "limit": PROBLEMS, "out": tmp_path}
    result = hf_lossy_assist.evaluate(pair.target, pair.draft, modes=MODES, **options)
    assert untimed(result.answers) == untimed(whole.answers)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert list(summary) == MODES.split(",")
    for label, entry in summary.items():
        assert list(entry) == [
            "score", "n", "difference", "low", "high", "mean_accepted", "tokens_per_round", "tokens_per_second",
            "target_calls_per_100_tokens", "same_texts", "tokens_per_answer", "tokens_apart", "seconds_per_answer",
            "cut_off", "speed", "lossless",
        ]  # fmt: skip
        assert {"label": label, **entry} == json.loads(json.dumps(asdict(result.modes[label])))
        assert (entry["low"] < entry["high"]) is (label != "plain")
    for change in ({"batch_size": 2}, {"gamma": 4}, {"max_new_tokens": 7}, {"reference": "lossless"}, {"seed": 3}):
        with pytest.raises(LossyValueError, match="hold data of the same settings"):
            hf_lossy_assist.evaluate(pair.target, pair.draft, **{"modes": MODES, **options, **change})
    with pytest.raises(LossyValueError, match="of `target` was"):
        hf_lossy_assist.evaluate(pair.draft, pair.target, modes=MODES, **options)


def test_answers_that_were_scored_otherwise_are_not_gone_on_with(pair, tmp_path):
    class Judged(Arithmetic):
        def __init__(self, votes):
            super().__init__()
            self.scoring = {"votes": votes}

    options = {"tokenizer": pair.tokenizer, "modes": "plain", "limit": 1, "max_new_tokens": 4, "out": tmp_path}
    hf_lossy_assist.evaluate(pair.target, task=Judged(1), **options)
    with pytest.raises(LossyValueError, match=r"`votes` of `scoring` was 1 and is 3"):
        hf_lossy_assist.evaluate(pair.target, task=Judged(3), **options)


def test_what_modes_are_compared_with():
    assert reference_of(parse_modes("topk,plain,lossless")) == "plain"
    assert reference_of(parse_modes("topk,lossless@9")) == "lossless@9"
    assert reference_of(parse_modes("topk,ears")) == "topk"
    assert reference_of(parse_modes("draft,lossless")) == "lossless"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modes": parse_modes("plain,plain")}, "every mode once"),
        ({"modes": [*parse_modes("plain"), *parse_modes("topk", 3, 0.9)]}, "`modes` have to draw at one `temperature`"),
        ({"reference": "judge"}, "`reference` has to be one of"),
        ({"modes": parse_modes("plain,judge")}, r"`modes` has 'judge', .* head; .* `heads`"),
        ({"limit": 0}, "`limit` has to be an int >= 1, but is 0"),
        ({"limit": 2.5}, "`limit` has to be an int >= 1, but is 2.5"),
        ({"batch_size": 0}, "`batch_size` has to be an int >= 1, but is 0"),
        ({"max_new_tokens": 0}, "`max_new_tokens` has to be an int >= 1 or None, but is 0"),
        ({"seed": -1}, "`seed` has to be an int >= 0, but is -1"),
        ({"draft": None}, "`draft` has to be given for the mode 'stock'"),
        ({"task": Nothing()}, "`split` has to be one with problems"),
        ({"draft": None, "lookup": 1, "modes": parse_modes("plain,topk@auto")}, "'topk@auto'.* a number"),
        ({"draft": None, "lookup": 1, "modes": parse_modes("plain,draft")}, "`draft` has .* mode 'draft'"),
    ],
)
def test_what_can_t_be_evaluated_is_refused_first(evaluation, change, message):
    with pytest.raises(LossyValueError, match=message) as raised:
        changed(evaluation, **change)
    assert "--" not in str(raised.value), "there are no options in Python"


def test_defaults_of_an_enabled_model_are_no_mode_s(pair, whole):
    options = {"tokenizer": pair.tokenizer, "task": pair.task, "gamma": 3, "limit": PROBLEMS, "modes": MODES}
    with enabled(pair.target, assistant_model=pair.draft, lossy_mode="topk", lossy_config={"k": 9}):
        result = hf_lossy_assist.evaluate(pair.target, pair.draft, **options)
    assert untimed(result.answers) == untimed(whole.answers)


def test_a_target_on_disk_answers_the_same(pair, whole, tmp_path):
    options = {"tokenizer": pair.tokenizer, "task": pair.task, "gamma": 3, "limit": PROBLEMS}
    target = disk_offload(copy.deepcopy(pair.target), tmp_path, torch.device("cpu"))
    result = hf_lossy_assist.evaluate(target, pair.draft, modes=MODES.replace("stock,", ""), **options)
    assert untimed(result.answers) == untimed(x for x in whole.answers if x.mode != "stock")
    with pytest.raises(LossyValueError, match="`modes` has a mode that can't run here, stock: "):
        hf_lossy_assist.evaluate(target, pair.draft, modes="plain,stock", **options)


def test_prompt_lookup_drafts_without_a_model(pair):
    options = {"tokenizer": pair.tokenizer, "task": pair.task, "limit": 2, "prompt_lookup_num_tokens": 4}
    modes = "plain,stock,lossless,topk:k=3,everything@2,dropmatch:criterion=naive"
    result = hf_lossy_assist.evaluate(pair.target, modes=modes, **options)
    texts = {label: [a.text for a in result.answers if a.mode == label] for label in result.modes}
    assert texts["plain"] == texts["stock"] == texts["lossless"]
    drafted = {answer.mode: answer.drafted for answer in result.answers}
    assert (drafted["plain"], drafted["stock"]) == (0, None), "transformers' loop does not tell"
    assert drafted["lossless"] > 0
    assert max(result.modes[mode].mean_accepted for mode in ("lossless", "topk:k=3")) > 0
    asked = [mode.keywords(Pair(pair.target, lookup=True), 0) for mode in parse_modes("plain,stock,topk@2", 4)]
    assert [keywords.get("prompt_lookup_num_tokens") for keywords in asked] == [None, 4, 2]
    with pytest.raises(LossyValueError, match=r"dropmatch: .*`criterion=\"naive\"`"):
        hf_lossy_assist.evaluate(pair.target, modes="plain,dropmatch", **options)
    with pytest.raises(LossyValueError, match="`prompt_lookup_num_tokens` has to be an int >= 1, but is 0"):
        hf_lossy_assist.evaluate(pair.target, modes=modes, **options | {"prompt_lookup_num_tokens": 0})


def test_prompt_lookup_comes_before_a_draft(pair, tmp_path):
    asked = [mode.keywords(Pair(pair.target, pair.draft, lookup=4), 0) for mode in parse_modes("plain,stock,topk@2")]
    assert [keywords.get("prompt_lookup_num_tokens") for keywords in asked] == [None, None, 4]
    assert [keywords.get("assistant_model") for keywords in asked] == [None, pair.draft, pair.draft]
    assert asked[2]["num_assistant_tokens"] == 2
    options = {"tokenizer": pair.tokenizer, "task": pair.task, "limit": 2, "modes": "plain,stock,lossless@auto"}
    result = hf_lossy_assist.evaluate(pair.target, pair.draft, prompt_lookup_num_tokens=4, out=tmp_path, **options)
    assert len({answer.text for answer in result.answers}) == 2
    with pytest.raises(LossyValueError, match="`out`"):
        hf_lossy_assist.evaluate(pair.target, pair.draft, out=tmp_path, **options)  # other rounds


def test_a_mode_that_can_t_run_is_refused_before_any_answer(evaluation):
    store = AnswerStore()
    with pytest.raises(LossyValueError, match="a mode that can't run here, topk:k=-1"):
        list(replace(evaluation, modes=parse_modes("plain,topk:k=-1")).run(store))
    assert not len(store)


def test_modes_are_warmed_up_on_a_few_tokens(evaluation, monkeypatch):
    seen, run = [], module.run_request
    monkeypatch.setattr(module, "run_request", lambda *given: seen.append(given[1:]) or run(*given))
    modes = [mode for mode in evaluation.modes if mode.label != "stock"]  # which takes one row
    answered(replace(evaluation, modes=modes, batch_size=3, limit=6))
    warming = [given for given in seen if given[-1] == 4]
    assert [mode.label for mode, *_ in warming] == [mode.label for mode in modes]
    assert all(batch.ids.shape == batch.mask.shape == (3, 4) for _, batch, _ in warming)


def test_the_baselines_are_the_draft_s_own_text_and_what_keeps_all_of_it(evaluation, pair):
    modes = parse_modes("plain,draft,everything", 20)
    alone = changed(evaluation, target=pair.draft, draft=None, modes=parse_modes("plain"), limit=3)
    said = [answers["plain"].text for answers in answered(alone)]
    for answers, text in zip(answered(replace(evaluation, modes=modes, limit=3)), said, strict=True):
        assert answers["draft"].text == text
        assert answers["everything"].accepted >= answers["everything"].tokens - 1
        assert (answers["draft"].rounds, answers["draft"].accepted) == (0, answers["draft"].tokens)


def test_an_eagle3_head_drafts_and_the_plan_knows_it(pair, tmp_path):
    config = pair.target.config
    sizes = {"target_hidden_size": config.hidden_size, "target_layers": (0, 1)}
    one, other = (random_head(layer(vocab_size=config.vocab_size), seed=seed, **sizes) for seed in (0, 1))
    shared = {"tokenizer": pair.tokenizer, "task": pair.task, "limit": 1, "max_new_tokens": 3, "out": tmp_path}
    found = hf_lossy_assist.evaluate(pair.target, one, modes="plain,lossless", **shared)
    assert found.modes["lossless"].n == 1
    with pytest.raises(LossyValueError, match="draft"):
        hf_lossy_assist.evaluate(pair.target, other, modes="plain,lossless", **shared)


def test_modes_may_be_a_list_of_texts(pair):
    options = {"tokenizer": pair.tokenizer, "task": pair.task, "limit": 1, "max_new_tokens": 3}
    listed = ["plain", "topk@3:k=2", DecodingMode("own", "lossless", gamma=2)]
    assert [*hf_lossy_assist.evaluate(pair.target, pair.draft, modes=listed, **options).modes] == [
        "plain", "topk@3:k=2", "own"
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), [
    ({"modes": [3]}, r"`modes` has to be a text or a list of modes, but is \[3\]"),
    ({"modes": []}, r"`modes` has to be a text or a list of modes, but is \[\]"),
    ({"modes": ["plain", DecodingMode("own", "lossless")], "temperature": 0.5}, "`temperature` and `top_p` are for"),
    ({"gamma": 0, "modes": "plain,stock"}, "`modes` has 'stock', but only 'lossless@0' runs without drafts"),
    ({"gamma": 0, "modes": "plain,topk"}, "`modes` has 'topk', but only 'lossless@0' runs without drafts"),
    ({"top_p": 0.5}, r"`top_p` is 0\.5, but without a `temperature` nothing is drawn"),
    ({"top_p": 0.0, "temperature": 1.0}, r"`top_p` has to be a number > 0 and <= 1, but is 0\.0"),
    ({"task": PromptList([[]])}, "`task` has to have prompts of one token or more"),
    ({"task": ["Hi"]}, r"`task` has to be a task or the name of one, but is a list; .*prompts\.txt"),
    ({"draft": "target"}, "`draft` has to be another model than the target"),
    ({"reference": ""}, "`reference` has to be one of the modes"),
    ({"heads": {"judge": "no/such/head"}}, r"`heads\['judge'\]` is 'no/such/head', which is neither"),
    ({"heads": {"judge": 3}}, r"`heads\['judge'\]` has to be a Hub id, a folder or a Head, but is 3"),
])  # fmt: skip
def test_what_is_no_mode_task_or_draft_is_named(pair, given, said):
    options = {"tokenizer": pair.tokenizer, "task": pair.task, "modes": "plain", "draft": pair.draft, **given}
    options["draft"] = pair.target if options["draft"] == "target" else options["draft"]
    with pytest.raises(LossyValueError, match=said):
        hf_lossy_assist.evaluate(pair.target, **options)


def test_a_pair_in_place_of_a_target_is_told_to_pass_its_target(pair):
    calls = {
        "model": lambda: hf_lossy_assist.enable(pair),
        "target": lambda: hf_lossy_assist.evaluate(pair, tokenizer=pair.tokenizer, task=pair.task),
    }
    for argument, call in calls.items():
        with pytest.raises(LossyValueError, match=f"`{argument}` has to be .* is a Pair; pass its `target`"):
            call()


def test_heads_may_be_named_and_have_names_of_their_own(models, tmp_path, monkeypatch):
    monkeypatch.setattr(Evaluation, "complete", lambda self, out: self)
    head = judge_head(models.target, models.draft)
    head.save_pretrained(tmp_path)
    options = {"tokenizer": Words(), "task": Numbers(), "modes": "all"}
    for heads in ({"mine": head}, {"judge": str(tmp_path)}):
        found = hf_lossy_assist.evaluate(models.target, models.draft, heads=heads, **options)
        assert "judge" in [mode.label for mode in found.modes]
        assert found.pair.rule_heads["judge"].checksum == head.checksum


def test_prompts_that_stand_there_twice_are_said(pair):
    twice = replace(pair, task=PromptList(["one", [3, 4], "one", [3, 4]]))
    with pytest.warns(UserWarning, match="2 of the 4 prompts repeat earlier ones"):
        Evaluation(twice, parse_modes("plain"), "plain")


def test_times_of_other_threads_are_not_compared_in_silence(models, tmp_path, monkeypatch, recwarn):
    options = {"tokenizer": Words(), "task": Numbers(), "modes": "plain", "max_new_tokens": 2, "out": tmp_path}
    for limit in (1, 2):
        hf_lossy_assist.evaluate(models.target, limit=limit, **options)
    assert not [one for one in recwarn if "threads" in str(one.message)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    with pytest.warns(UserWarning, match="times of several machines or numbers of threads"):
        hf_lossy_assist.evaluate(models.target, limit=3, **options)


def test_several_processes_need_a_folder_to_sum_up_in(pair, monkeypatch):
    """Without one, each would take its share of the problems for all."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LossyValueError, match="`out` has to be a folder that all 2 processes sum up in"):
        hf_lossy_assist.evaluate(pair.target, tokenizer=pair.tokenizer, task=pair.task, modes="plain")


def test_processes_that_share_a_model_can_t_share_problems(evaluation, monkeypatch):
    monkeypatch.setattr(evaluation.pair.target, "_tp_size", 2, raising=False)
    with pytest.raises(LossyUnsupportedError, match="share one model"):
        replace(evaluation, process=Process(0, 2))
    replace(evaluation)


def test_a_head_that_has_seen_the_problems_is_said(models, recwarn):
    """Its figures on them say nothing of others."""
    own = Evaluation(replace(models, tokenizer=Words(), task=Numbers()), parse_modes("plain"), "plain", 3)
    judge, *others = judge_head(models.target, models.draft), {}, {"data": 3}, {"data": {"others": [3], "problems": {}}}
    first, *rest = own.plan()["problems"]
    data = {"problems": [*rest, 7], "others": [{"problems": [first, {}]}]}

    def evaluated(provenance, modes):
        head = JudgeHead(replace(judge.config, provenance=provenance), judge.weight, judge.bias)
        pair = replace(own.pair, heads={"mine": head})
        replace(own, pair=pair, modes=parse_modes(modes), max_new_tokens=2).complete(None)

    for provenance in others:
        evaluated(provenance, "plain,judge")
    evaluated({"data": data}, "plain")
    assert not [one for one in recwarn if "trained on" in str(one.message)]
    with pytest.warns(UserWarning, match="the head of 'judge' was trained on 3 of the problems"):
        evaluated({"data": data}, "plain,judge")


def test_a_score_may_be_a_bool(models):
    (task := Numbers()).score = lambda example, text, own: text is not None
    own = Evaluation(replace(models, tokenizer=Words(), task=task), parse_modes("plain"), "plain", 1, max_new_tokens=1)
    assert [answer.score for answer in own.complete(None).answers] == [1.0]


@pytest.mark.parametrize(("ends", "cut"), [((), True), (("9 7",), False), (("never said",), True)])
def test_an_answer_that_a_string_ends_is_not_cut_off(models, ends, cut):
    (task := Numbers()).ends = ends
    modes, response = parse_modes("plain"), Response([torch.tensor([5, 6, 9, 7])], 1.0, [(4, 0, 0)])
    own = Evaluation(replace(models, tokenizer=Words(), task=task), modes, "plain", 1)
    (found,) = own._answers_of(modes[0], 0, response, AnswerStore())
    assert found.cut is cut
    assert own.tokens_of(found) == [5, 6, 9, 7]


def test_a_draft_that_lacks_tokens_is_said(pair):
    small = resized(pair.draft, 60)
    with pytest.warns(UserWarning, match="`draft` knows 60 of the target's [0-9]+ tokens"):
        Evaluation(replace(pair, draft=small), parse_modes("plain"), "plain", 1)
