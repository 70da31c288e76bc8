"""From answers to a certificate, its files, and what is let through with it."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi
from transformers import GenerationConfig

from hf_lossy_assist import LossyUnsupportedError, LossyValueError, LossyVerification, enabled, quantize_draft
from hf_lossy_assist.calibration import Certificate, calibrate
from hf_lossy_assist.evaluation.answers import Answer, AnswerStore
from hf_lossy_assist.evaluation.evaluation import Evaluation
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.heads import JudgeHead
from hf_lossy_assist.pairs import Pair
from tests.acceptors.table import judge_head
from tests.evaluation.parts import DRAFT, TARGET, Numbers, Words, evaluation, write
from tests.hub.server import LoopbackHub
from tests.tiny_models import prompt, tiny

HEAD = judge_head(TARGET, DRAFT)
OTHER_HEAD = JudgeHead(HEAD.config, HEAD.weight + 0.1, HEAD.bias)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    losing = {"topk:k=3": 80}
    return write(tmp_path_factory.mktemp("answers"), evaluation(), lambda mode, i: float(i >= losing.get(mode, 0)))


@pytest.fixture
def saved(answered: Path, tmp_path: Path) -> Path:
    certificate = calibrate(answered, max_loss=3)
    certificate.save(str(tmp_path))
    return tmp_path


def test_the_fastest_certified_setting_is_chosen(answered: Path):
    certificate = calibrate(answered, max_loss=3)
    assert {x.mode: x.outcome for x in certificate.tested} == {
        "topk:k=2": "certified", "topk:k=3": "not certified", "near_top:alpha=0.1": "certified",
    }  # fmt: skip
    assert certificate.chosen == "topk:k=2", "4 tokens a second are more than 2.67"
    assert certificate.setting.loss == 0
    assert 0 < certificate.setting.bound <= 3
    assert {x.confidence for x in certificate.tested} == {97.5}, "two rules share the risk"
    assert calibrate(answered, max_loss=0.5).chosen is None
    only = calibrate(answered, 3, modes=["topk:k=3", "topk:k=2"])
    assert [x.outcome for x in only.tested] == ["not certified", "not tested"], "the order is the user's"
    with pytest.raises(LossyValueError, match=r"`modes`.*'topk:k=9'"):
        calibrate(answered, 3, modes=["topk:k=9"])


@pytest.mark.parametrize("draft", [None, DRAFT])
def test_drafts_that_were_looked_up_are_not_certified(tmp_path: Path, draft):
    looked_up = replace(evaluation(), pair=Pair(TARGET, draft, Words(), Numbers(), lookup=4))
    AnswerStore(tmp_path, looked_up.plan())
    with pytest.raises(LossyValueError, match="prompt lookup has none"):
        calibrate(tmp_path)


def test_files_come_back(answered: Path, saved: Path):
    assert Certificate.load(saved) == calibrate(answered, max_loss=3)
    config = GenerationConfig.from_pretrained(saved)
    assert (config.lossy_mode, config.lossy_config, config.num_assistant_tokens) == ("topk", {"k": 2}, 5)
    (named,) = parse_modes(str(saved), 8)
    known = {"k": 2, "certificate": str(saved)}
    assert named.config == {"lossy_mode": "topk", "lossy_config": known, "num_assistant_tokens": 5}


def run(saved: Path, **changes):
    keywords = {
        "input_ids": prompt(),
        "assistant_model": DRAFT,
        "generation_config": GenerationConfig.from_pretrained(saved),
    }
    keywords["generation_config"].lossy_config["certificate"] = str(saved)
    keywords["generation_config"].pad_token_id = 0
    keywords |= {"max_new_tokens": 8, **changes}
    if "lossy_config" in changes:
        keywords["lossy_config"] = {"certificate": saved, **changes["lossy_config"]}  # a path, not only its name
    with enabled(TARGET):
        return TARGET.generate(**keywords)


def test_the_certified_run_is_let_through(saved: Path):
    free = TARGET.generate
    with enabled(TARGET):
        plain = TARGET.generate(
            prompt(), assistant_model=DRAFT, lossy_mode="topk", lossy_config={"k": 2}, max_new_tokens=8,
            num_assistant_tokens=5, do_sample=False,
        )  # fmt: skip
    assert run(saved).tolist() == plain.tolist()
    assert free == TARGET.generate


def test_a_certified_draft_length_may_be_automatic(saved: Path):
    for name in ("certificate.json", "generation_config.json"):
        text = (saved / name).read_text()
        assert '"num_assistant_tokens": 5' in text
        (saved / name).write_text(text.replace('"num_assistant_tokens": 5', '"num_assistant_tokens": "auto"'))
    run(saved)
    with pytest.raises(LossyValueError, match="it drafts auto tokens a round, not 5"):
        run(saved, num_assistant_tokens=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"assistant_model": tiny("gpt2")}, "of the draft, the architecture is GPT2LMHeadModel"),
        ({"num_assistant_tokens": 3}, "it drafts 5 tokens a round, not 3"),
        ({"lossy_mode": "topk", "lossy_config": {"k": 3}}, "its rule is .*'k': 2.*'k': 3"),
        ({"lossy_mode": "typical", "lossy_config": {}}, "its rule is .*topk.*typical"),
        ({"lossy_mode": "topk", "lossy_config": {"k": 2, "budget": 0.5}}, "'budget': None.*'budget': 0.5"),
        ({"lossy_mode": "topk", "lossy_config": {"k": 2, "tree": {"depth": 2}}}, "not .*'tree': {'depth': 2"),
        ({"lossy_mode": "topk", "lossy_config": {"k": 2, "stop_drafting": {"by": "confidence"}}}, "not .*'by': 'conf"),
        ({"assistant_confidence_threshold": 0.4}, "not 5 with `assistant_confidence_threshold` 0.4"),
        ({"num_assistant_tokens_schedule": "heuristic"}, "not 5 with `num_assistant_tokens_schedule` 'heuristic'"),
        ({"do_sample": True}, "its temperature is None, not"),
        ({"assistant_model": None, "prompt_lookup_num_tokens": 5}, "of the draft, there is none"),
    ],
)
def test_another_run_is_refused_before_any_forward(saved: Path, changes: dict, message: str):
    forwards = []
    handle = TARGET.register_forward_hook(lambda *args: forwards.append(1))
    try:
        with pytest.raises(LossyValueError, match=f"`certificate`.*{message}"):
            run(saved, **changes)
    finally:
        handle.remove()
    assert not forwards


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of a rule with a head."""
    models, modes = Pair(TARGET, DRAFT, Words(), Numbers(), {"judge": HEAD}), parse_modes("plain,judge:threshold=0.5")
    folder = tmp_path_factory.mktemp("judged")
    write(folder / "answers", Evaluation(models, modes, "plain", 100))
    for heads, message in (
        (None, "`heads` .* head of the rule 'judge'"), ({"judge": OTHER_HEAD}, "other weights or thresholds"),
    ):  # fmt: skip
        with pytest.raises(LossyValueError, match=message):
            calibrate(folder / "answers", 10, heads=heads)
    certificate = calibrate(folder / "answers", 10, heads={"judge": HEAD})
    for heads in ({}, {"judge": OTHER_HEAD}):
        with pytest.raises(LossyValueError, match=r"`heads` has to have the certified heads of \['judge'\]"):
            certificate.save(folder, heads)
    certificate.save(folder, {"judge": HEAD})
    return folder


def test_a_threshold_that_the_head_brings_is_the_tested_one(tmp_path: Path):
    """Equal weights that were trained for another recall have another threshold: neither run goes on with the other."""
    stricter = JudgeHead(replace(HEAD.config, threshold=0.1), HEAD.weight, HEAD.bias)
    one, other = (
        Evaluation(Pair(TARGET, DRAFT, Words(), Numbers(), {"judge": head}), parse_modes("plain,judge"), "plain", 100)
        for head in (HEAD, stricter)
    )
    write(tmp_path, one)
    with pytest.raises(LossyValueError, match=r"`judge` of `modes` was .*'threshold': 0\.5.*'threshold': 0\.1"):
        AnswerStore(tmp_path, other.plan())
    with pytest.raises(LossyValueError, match="other weights or thresholds"):
        calibrate(tmp_path, 10, heads={"judge": stricter})
    assert calibrate(tmp_path, 10, heads={"judge": HEAD}).rule["threshold"] == 0.5


def test_a_certificate_needs_no_other_head(judged: Path):
    (mode,) = parse_modes(str(judged))
    mode.check_heads({})
    assert mode.described({"judge": OTHER_HEAD})["heads"] == {"judge": HEAD.checksum}
    assert mode.heads_of({"judge": OTHER_HEAD}) is None


def test_a_problem_that_is_asked_again_is_no_more_proof(tmp_path: Path):
    class Same(Numbers):
        def examples(self, split, n):
            return super().examples(split, 1) * n

    with pytest.warns(UserWarning, match="399 of the 400 prompts repeat earlier ones"):
        same = replace(evaluation(400), pair=Pair(TARGET, DRAFT, Words(), Same()))
    write(tmp_path, same, lambda mode, i: float(i % 4 > 0 or mode == "plain"))
    found = calibrate(tmp_path, 50)
    assert (found.chosen, found.problems) == (None, 1)
    assert [(each.n, each.loss) for each in found.tested if each.outcome == "not certified"] == [(1, 25.0)] * 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_loss", 0), ("max_loss", 150), ("confidence", 100), ("confidence", "95"), ("confidence", 0.95)],
)
def test_limits_are_per_cent(tmp_path: Path, name: str, value: object):
    least = ">= 50" if name == "confidence" else "> 0"
    with pytest.raises(LossyValueError, match=f"`{name}` has to be a number {least} and < 100, but is {value!r}"):
        calibrate(tmp_path, **{name: value})


def test_answers_without_scores_are_refused(tmp_path: Path):
    own = evaluation(4)
    store = AnswerStore(tmp_path, own.plan())
    store.add(Answer("plain", 0, None, 8, 4, 6, 1.0, "", 2))
    with pytest.raises(LossyValueError, match="`folder` has to have scores, but its task 'numbers' has no right"):
        calibrate(tmp_path)


def test_what_certifies_nothing_leaves_no_older_setting(answered: Path, saved: Path):
    calibrate(answered, max_loss=0.5).save(saved)
    assert Certificate.load(saved).chosen is None
    assert not (saved / "generation_config.json").exists()


def run_saved(source: str) -> list[list[int]]:
    """Decode as a certificate's folder or repository says."""
    config = GenerationConfig.from_pretrained(source)
    config.lossy_config["certificate"] = source
    with enabled(TARGET):
        inputs = {"input_ids": prompt(), "max_new_tokens": 8}
        return TARGET.generate(**inputs, generation_config=config, assistant_model=DRAFT).tolist()


@pytest.fixture
def judged_by_hand() -> list[list[int]]:
    """The output of the certified run of ``judged``."""
    with enabled(TARGET):
        output = TARGET.generate(
            prompt(), assistant_model=DRAFT, lossy_mode="judge", lossy_config={"threshold": 0.5}, lossy_head=HEAD,
            max_new_tokens=8, num_assistant_tokens=5, do_sample=False,
        )  # fmt: skip
    return output.tolist()


def test_a_saved_certificate_brings_its_setting_and_its_head(
    saved: Path, judged: Path, judged_by_hand: list[list[int]], tmp_path: Path
):
    assert run_saved(str(saved)) == run(saved).tolist()
    moved = shutil.copytree(judged, tmp_path / "moved", ignore=shutil.ignore_patterns("answers"))
    assert run_saved(str(moved)) == judged_by_hand


def test_so_does_one_on_the_hub(judged: Path, judged_by_hand: list[list[int]], signed_in: LoopbackHub):
    HfApi().create_repo("org/certified")
    HfApi().upload_folder(repo_id="org/certified", folder_path=judged)  # as `hf upload` does
    assert run_saved("org/certified") == judged_by_hand


def test_a_certificate_is_of_the_head_too(judged: Path, judged_by_hand: list[list[int]]):
    def judged_by(head: JudgeHead) -> list[list[int]]:
        return run(judged, lossy_head=head).tolist()

    assert judged_by(HEAD) == judged_by_hand
    assert judged_by(copy.deepcopy(HEAD)) == judged_by_hand, "equal weights are the same head"
    for other in (OTHER_HEAD, JudgeHead(HEAD.config, HEAD.weight, HEAD.bias + 1)):
        with pytest.raises(LossyValueError, match="its heads have other weights"):
            judged_by(other)


def test_another_target_and_another_loop_are_refused(saved: Path):
    other = tiny()
    with torch.no_grad():
        other.get_output_embeddings().weight.mul_(1.5)
    config = GenerationConfig.from_pretrained(saved, pad_token_id=0)
    config.lossy_config["certificate"] = str(saved)
    with enabled(other), pytest.raises(LossyValueError, match="of the target, the weights of the LM head"):
        other.generate(prompt(), generation_config=config, assistant_model=DRAFT, max_new_tokens=4)
    with pytest.raises(LossyUnsupportedError, match="`certificate`"):
        LossyVerification("topk", TARGET, k=2, certificate=str(saved))


def test_a_rounded_draft_is_another(saved: Path, tmp_path: Path):
    rounded = quantize_draft(copy.deepcopy(DRAFT), "int8")
    with pytest.raises(LossyValueError, match=r"its draft was changed by nothing, not by \{'draft_dtype': 'int8'\}"):
        run(saved, assistant_model=rounded)
    write(tmp_path / "answers", replace(evaluation(), pair=Pair(TARGET, rounded, Words(), Numbers())))
    calibrate(tmp_path / "answers", 3).save(tmp_path)
    assert run(tmp_path, assistant_model=rounded) is not None
    with pytest.raises(LossyValueError, match="not by nothing"):
        run(tmp_path)


def test_so_is_another_engine(saved: Path):
    own = Certificate.load(saved)
    tested = [replace(each, config={**each.config, "engine": "vllm"}) for each in own.tested]
    replace(own, tested=tested).save(saved)
    assert not hasattr(GenerationConfig.from_pretrained(saved), "engine")
    with pytest.raises(LossyValueError, match="it was measured in vllm, not in transformers"):
        run(saved)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", '{"tested": []}', "[" * 10**5, '"\ud800"'])
def test_a_file_that_holds_something_else_is_refused(saved: Path, content: str):
    (saved / "certificate.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(LossyValueError, match=r"certificate\.json' does not: "):
        Certificate.load(saved)


@pytest.mark.parametrize("source", ["no such folder", 3, "/", "a/b/c"])
def test_what_is_no_certificate_is_refused(source):
    with enabled(TARGET), pytest.raises(LossyValueError, match="certificate"):
        TARGET.generate(prompt(), assistant_model=DRAFT, lossy_mode="topk", lossy_config={"certificate": source})
