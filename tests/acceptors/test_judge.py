"""The judge keeps what its head finds unimportant, whatever states the head reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from hf_lossy_assist import JudgeHead, LossyValueError
from hf_lossy_assist.acceptors import DropMatch, Judge, Lossless, TopK
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.generation.config import LossyConfig
from hf_lossy_assist.heads import ThresholdRow
from tests.acceptors.fixtures import any_judge
from tests.nightly import nightly
from tests.tiny_models import noisy_copy, prompt, tiny

parse = LossyConfig.from_fields

GREEDY = {"max_new_tokens": 50, "eos_token_id": None, "do_sample": False, "return_dict_in_generate": True}


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_head_that_finds_all_important_is_lossless(do_sample: bool):
    target = tiny()
    draft = noisy_copy(target)
    head = any_judge(target, draft, bias=50.0, scale=0.0)
    kwargs = GREEDY | {"input_ids": prompt(), "assistant_model": draft, "do_sample": do_sample}
    lossless = target.generate(**kwargs, lossy_mode="lossless", lossy_config={"seed": 0})
    out = target.generate(**kwargs, lossy_mode="judge", lossy_head=head, lossy_config={"seed": 0})
    assert out.sequences.tolist() == lossless.sequences.tolist()
    assert out.lossy_stats.accepted_lossy == 0
    assert out.lossy_stats.accepted_by == {"lossless": out.lossy_stats.accepted, "judge": 0}


# Which states a head reads does not depend on the architecture: of others than llama, one head that reads them all.
CASES = [("llama", *reads) for reads in itertools.product(("target", "draft", "both"), ("previous", "draft", "both"))]
CASES += [(name, "both", "both") for name in ("mistral", "gpt2")]


@pytest.mark.parametrize(("architecture", "models", "positions"), nightly(CASES, but=[*CASES[:9:4], CASES[-1]]))
def test_kept_tokens_are_those_of_naive_forwards(architecture: str, models: str, positions: str):
    """An oracle that decodes round by round with uncached forwards and NumPy gives the same text."""
    target = tiny(architecture)
    draft = noisy_copy(target, 0.08)
    head = undecided_head(target, draft, models, positions)
    out = target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="judge", lossy_head=head, num_assistant_tokens=4, **GREEDY
    )
    assert min(out.lossy_stats.accepted_lossy, out.lossy_stats.corrected) > 0, (
        "the head finds some tokens important and some not"
    )
    assert out.sequences[0].tolist()[:57] == naive_judge(target, draft, head, 57)[:57]


def undecided_head(target, draft, models: str, positions: str) -> JudgeHead:
    """Return a head that finds half of the tokens of the target's own text important."""
    head = any_judge(target, draft, models, positions)
    ids = target.generate(input_ids=prompt(), **GREEDY).sequences[0].tolist()
    _, of_target = states(target, ids)
    _, of_draft = states(draft, ids)
    parts = {
        "target_previous": of_target[:-1],
        "target_draft": of_target[1:],
        "draft_previous": of_draft[:-1],
        "draft_draft": of_draft[1:],
    }
    scores = np.concatenate([parts[name] for name in head.config.columns], -1) @ head.weight.double().numpy()
    return any_judge(target, draft, models, positions, bias=-float(np.median(scores)))


@torch.no_grad()
def states(model, ids: list[int]) -> tuple[list[int], np.ndarray]:
    """Return the most likely token after each position, and the states that say so."""
    seen = []
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    handle.remove()
    return logits.argmax(-1).tolist(), seen[0].double().numpy()


def naive_judge(target, draft, head: JudgeHead, length: int, gamma: int = 4) -> list[int]:
    weight, bias = head.weight.double().numpy(), float(head.bias)
    ids = prompt()[0].tolist()
    while len(ids) < length:
        drafted, start = list(ids), len(ids)
        n = min(gamma, length - start - 1)
        of_draft = None  # of all that is drafted but the last
        for _ in range(n):
            said, of_draft = states(draft, drafted)
            drafted.append(said[-1])
        best, of_target = states(target, drafted)
        for i in range(start, start + n):
            if drafted[i] != best[i - 1]:
                last = i == start + n - 1
                parts = {
                    "target_previous": of_target[i - 1],
                    "target_draft": of_target[i],
                    "draft_previous": of_draft[i - 1],
                    "draft_draft": None if last else of_draft[i],
                }
                chosen = [parts[name] for name in head.config.columns]
                if any(part is None for part in chosen):
                    break
                if 1 / (1 + np.exp(-(np.concatenate(chosen) @ weight + bias))) >= head.config.threshold:
                    break
            ids.append(drafted[i])
        ids.append(best[len(ids) - 1])
    return ids


def test_above_another_rule_the_judge_has_no_base_of_its_own():
    target = tiny()
    head = any_judge(target, target)
    either = parse(["judge", "dropmatch"], {"judge": {"threshold": 0.2}}, head).rule
    assert either.rules == (Judge(head, 0.2, base=None), DropMatch())
    assert parse(["topk", "judge"], {"topk": {"k": 3}}, {"judge": head}).rule.rules == (TopK(k=3), Judge(head))
    assert parse("judge", None, head).rule.base == Lossless()
    v = Verification(tokens=torch.tensor([[3, 5]]), logits=torch.eye(8)[[3, 3, 3]][None], hidden=torch.zeros(1, 3, 32))
    important = any_judge(target, target, bias=1.0)
    assert Judge(important, base=None).keep(v).tolist() == [[False, False]]
    assert Judge(important).keep(v).tolist() == [[True, False]]
    assert Judge(any_judge(target, target, bias=-1.0), base=None).keep(v).tolist() == [[True, True]]


def test_in_a_list_a_token_is_credited_to_the_first_rule_that_needs_no_base():
    target = tiny()
    tokens, best = torch.tensor([[1, 2, 3, 4]]), torch.tensor([1, 0, 0, 0, 0])
    logits = torch.nn.functional.one_hot(best, 8).float()[None]
    logits[0, 1, 2] = 0.5  # token 2 is second, tokens 3 and 4 are not
    v = Verification(tokens=tokens, logits=logits, hidden=torch.zeros(1, 5, 32))
    unimportant = any_judge(target, target, bias=-1.0)

    def credits(mode):
        head = unimportant if isinstance(mode, str) or "judge" in mode else None
        return {rule: mask[0].tolist() for rule, mask in parse(mode, None, head).rule.credits(v).items()}

    yes, no = True, False
    assert credits("judge") == {"lossless": [yes, no, no, no], "judge": [no, yes, yes, yes]}
    assert credits(["judge", "lossless"]) == credits("judge")
    assert credits(["judge", "topk"]) == {"topk": [yes, yes, no, no], "judge": [no, no, yes, yes]}
    # Last in a list, the judge has a base of its own.
    assert credits(["topk", "judge"]) == credits(["judge", "topk"]) | {"lossless": [no] * 4}
    assert credits(["lossless", "topk"]) == {"lossless": [yes, no, no, no], "topk": [no, yes, no, no]}


def test_recall_is_looked_up_in_the_head_s_table():
    table = (ThresholdRow(0.1, 0.99, 0.5), ThresholdRow(0.3, 0.93, 0.7), ThresholdRow(0.6, 0.8, 0.9))
    target = tiny()
    head = any_judge(target, target, thresholds=table, threshold=0.6)
    assert parse("judge", {"recall": 0.9}, head).rule.threshold == 0.3
    assert parse("judge", None, head).rule.threshold == 0.6
    with pytest.raises(LossyValueError, match=r"`recall`.*0\.999.*0\.99"):
        parse("judge", {"recall": 0.999}, head)


def test_heads_by_folder_in_a_generation_config(tmp_path):
    target = tiny()
    draft = noisy_copy(target)
    any_judge(target, draft, scale=3.0).save_pretrained(tmp_path / "head")
    target.generation_config = GenerationConfig(
        pad_token_id=0, lossy_mode="judge", lossy_head=str(tmp_path / "head"), lossy_config={"seed": 0}
    )
    target.save_pretrained(tmp_path / "model")
    again = type(target).from_pretrained(tmp_path / "model")
    kwargs = GREEDY | {"input_ids": prompt(), "assistant_model": draft}
    first, second = target.generate(**kwargs), again.generate(**kwargs)
    assert first.sequences.tolist() == second.sequences.tolist()
    assert first.lossy_stats.accepted_lossy == second.lossy_stats.accepted_lossy > 0
