"""Requests that join, leave, are preempted or read in pieces keep their own texts."""

from __future__ import annotations

from typing import Any

from vllm import TokensPrompt

from tests.vllm.asking import RULES, answers, asking, prompts_of, texts

MIXED = [asking(), *(asking(mode, config) for mode, config in RULES), asking("fsd", {"divergence": "tv"})]


def scheduler_of(engine) -> Any:
    return engine.llm_engine.engine_core.engine_core.scheduler


def test_preempted_requests_have_their_own_texts(engine, cramped, pair, monkeypatch):
    prompts = prompts_of(pair, len(MIXED))
    preempted, scheduler = [], scheduler_of(cramped)
    preempt = scheduler._preempt_request

    def noted(request, *args, **kwargs):
        preempted.append(list(request.prompt_token_ids))
        return preempt(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", noted)
    asked = [asking("lossless"), *MIXED[1:4], asking("lossless"), *MIXED[5:]]
    found, roomy = texts(cramped, prompts, *asked), texts(engine, prompts, *asked)
    assert preempted
    # A preempted request loses its draft, so its rounds begin elsewhere: only a lossless text stays as it is.
    same = [i for i, prompt in enumerate(prompts) if prompt not in preempted or i in (0, 4)]
    assert [found[i] for i in same] == [roomy[i] for i in same]
    assert all(found)


def test_a_cached_prefix_changes_no_text(engine, pair):
    prompts = [prompts_of(pair)[0] * 2] * len(MIXED)
    first = texts(engine, prompts, *MIXED)
    answer = answers(engine, prompts[:1], MIXED[1])[0]
    assert answer.num_cached_tokens > 0
    assert texts(engine, prompts, *MIXED) == first


def test_requests_join_leave_and_are_aborted(engine, pair):
    prompts = prompts_of(pair, len(MIXED))
    alone = {str(i): text for i, text in enumerate(texts(engine, prompts, *MIXED))}
    core, found = engine.llm_engine, {}

    def add(i: int) -> None:
        core.add_request(str(i), TokensPrompt(prompt_token_ids=prompts[i]), MIXED[i])

    def step() -> None:
        found.update({x.request_id: list(x.outputs[0].token_ids) for x in core.step() if x.finished})

    for i in range(len(MIXED)):
        add(i)
        step()
        if i == 3:
            core.abort_request(["1", "2"])
    while core.has_unfinished_requests():
        step()
    assert found == {i: text for i, text in alone.items() if i not in ("1", "2")}
    assert not scheduler_of(engine).requests
