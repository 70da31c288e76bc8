"""Labels that cost less: texts that come back to old ones, drawn mismatches, prompts that the target solves."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from hf_lossy_assist import pairs
from hf_lossy_assist.mining.choice import Greedy, GumbelMax
from hf_lossy_assist.mining.rejoining import OldText, Rejoining
from hf_lossy_assist.mining.search import Chosen, Found, UnfinishedSearches, search
from hf_lossy_assist.tasks import Example
from tests.mining.parts import Checksum, Parts, by_prompt, judge, tiny_parts
from tests.tiny_models import ARCHITECTURES


def labels_of(found: Found) -> list[tuple[int, int, int, bool]]:
    return [(m.index, m.target_token, m.draft_token, m.important) for m in found.mismatches]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("look_up", "choice"), [(1, Greedy()), (2, Greedy()), (1, GumbelMax(3, 0.9))])
def test_a_look_up_changes_nothing(architecture, look_up, choice):
    parts = tiny_parts(architecture, seed=3, noise=0.2, task=Checksum(5), max_new_tokens=20)
    prompts = parts.prompts(4)
    whole = by_prompt(parts, prompts, slots=3, choice=choice)
    assert sum(len(found.mismatches) for found in whole.values()) > 3
    for slots in (1, 3):
        assert by_prompt(parts, prompts, slots=slots, choice=choice, rejoining=Rejoining(look_up)) == whole


@pytest.fixture(scope="module")
def bundled() -> Parts:
    pair = pairs.load("arithmetic")
    return Parts(pair.target, pair.draft, pair.tokenizer, pair.task, max_new_tokens=160)


def test_on_the_bundled_pair_labels_stay_where_texts_are_read_and_nearly_where_they_are_not(bundled):
    prompts, forwards = bundled.prompts(8), []
    handle = bundled.target.register_forward_pre_hook(lambda *_: forwards.append(1))
    results, costs = {}, {}
    for name, how in {"whole": Rejoining(), "read": Rejoining(4), "stop": Rejoining(4, 16, bundled.decode)}.items():
        forwards.clear()
        found = {one.prompt.id: one for one in bundled.searches(8, rejoining=how).run(prompts)}
        results[name] = {i: one.found for i, one in found.items()}
        costs[name] = len(forwards), sum(one.counts.target_tokens for one in found.values())
    handle.remove()
    assert results["read"] == results["whole"]
    assert costs["read"][0] < costs["whole"][0]
    assert costs["stop"][1] < costs["whole"][1]
    pairs_of_labels = [
        ({x[:3]: x[3] for x in labels_of(results[name][prompt.id])} for name in ("whole", "stop")) for prompt in prompts
    ]
    both = [(ours[key], theirs[key]) for ours, theirs in pairs_of_labels for key in ours.keys() & theirs.keys()]
    assert len(both) > 20
    assert sum(ours != theirs for ours, theirs in both) <= 0.05 * len(both)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("a b X c d e f", "a b Y c d", 5),
        ("a b X c d e f", "a b Y Z c d", 5),
        ("a b X c d e f", "a b c d", None),  # too near to the change
        ("a b X c d e f", "a b Y d c", None),
        ("a b X c d e c d f", "a b Y q q c d", 8),  # the nearest of two
        ("a b X c d", "a b Y c d", None),  # nothing follows
        ("c d X e f g", "c d Y c d", None),  # only before the change
    ],
)
def test_a_text_is_back_in_the_old_one_after_so_many_equal_tokens(old: str, new: str, place: int | None):
    old_text = OldText(Rejoining(2), tuple(old.split()), 2)
    assert old_text.rejoined(tuple(new.split())) == place


@pytest.mark.parametrize(
    ("old", "new", "stops"),
    [
        ("there are 5 X c d e f", "there are 5 Y c d e", True),
        ("there are 5 X c d e f", "there are 5 Y and Z c d e", True),
        ("there are X 6 c d e f", "there are Y 7 c d e", False),  # another number
        ("there are X 6 c d e f", "there are Y c d e", False),  # none
        ("there are X 6 c d e f", "there are Y just 6 c d e", True),
    ],
)
def test_a_text_is_not_taken_over_where_numbers_differ(old: str, new: str, stops: bool):
    old, new = tuple(old.split()), tuple(new.split())
    changed = next(i for i, (ours, theirs) in enumerate(zip(old, new, strict=False)) if ours != theirs)
    text = OldText(Rejoining(2, 3, " ".join), old, changed)
    place = text.rejoined(new)
    assert old[place:] == ("f",)
    assert text.stops(new, place, 3) == stops
    assert not text.stops(new, place, 2)


def labelled(
    count: int, chosen: Chosen, start: float, *, important: bool, more: int = 0, begun: Found | None = None
) -> Found:
    """Search a text of zeros where the draft says 1 at every odd place; a changed text has ``more`` mismatches."""

    class Zeros(Checksum):
        def answer(self, example, response):
            return "1"

        def keeps_answer(self, example, current_response, new_response):
            return not important

    first = (0,) * (2 * count)
    steps = search(Example("", ""), Zeros(), str, begun, chosen=chosen, start=start)
    request = next(steps)
    while True:
        match type(request).__name__:
            case "Continue":
                text = first + (0,) * (2 * more if request.prefix else 0)
                reply = (*request.prefix, *text[len(request.prefix) :])
            case "Guess":
                reply = tuple(i % 2 for i in range(request.start, len(request.response)))
            case "Ask":
                reply = request.question()
            case _:
                reply = None
        try:
            request = steps.send(reply)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize(("important", "more"), [(False, 0), (True, 0), (False, 9)])
@pytest.mark.parametrize(("count", "most"), [(17, 4), (12, 4), (5, 5), (3, 8), (40, 1)])
def test_every_mismatch_is_drawn_equally_often_and_weights_make_up_for_the_rest(count, most, important, more):
    starts = 840
    drawn: Counter[int] = Counter()
    for start in range(starts):
        found = labelled(count, Chosen(most), (start + 0.5) / starts, important=important, more=more).mismatches
        if not more:
            assert len(found) == min(most, count)
            assert sum(one.weight for one in found) == pytest.approx(count)
        drawn.update(one.index for one in found)
    assert set(drawn) == {2 * i + 1 for i in range(count + more)}
    expected = starts * min(most, count) / count
    assert all(abs(times - expected) <= 1 for times in drawn.values())


@pytest.mark.parametrize(("before", "after", "kept"), [(None, 8, 5), (None, 3, 5), (4, 2, 1), (4, None, 2), (4, 8, 3)])
def test_a_prompt_ends_by_the_plan_that_it_began_with(before, after, kept):
    whole = labelled(17, Chosen(before), 0.3, important=True)
    begun = dataclasses.replace(whole, mismatches=whole.mismatches[:kept])
    assert labelled(17, Chosen(after), 0.3, important=True, begun=begun) == whole


def test_draws_depend_on_the_seed_and_go_on_after_a_cut(tmp_path):
    parts = tiny_parts(seed=3, noise=0.3, max_new_tokens=40)
    prompts = parts.prompts(6)
    whole = by_prompt(parts, prompts, chosen=Chosen(3))
    assert by_prompt(parts, prompts, chosen=Chosen(3, seed=1)) != whole
    assert any(found.mismatches[0].weight > 1 for found in whole.values() if found.mismatches)
    cut = UnfinishedSearches(tmp_path)
    for i, found in whole.items():
        if len(found.mismatches) > 1 and found.mismatches[-1].important:
            # The last label is still to be found; as the target's token stayed, it has changed nothing.
            part = dataclasses.replace(found, mismatches=found.mismatches[:-1])
            cut.keep({i: (parts.searches().unfinished.get(i)[0], part)})
    assert [*cut.items()]
    again = by_prompt(parts, prompts, chosen=Chosen(3), unfinished=UnfinishedSearches(tmp_path))
    assert again == whole


def test_prompts_that_the_target_answers_wrongly_may_be_left_out():
    parts = tiny_parts(seed=3, task=Checksum(2))
    prompts = parts.prompts(8)
    everything, solved = by_prompt(parts, prompts), by_prompt(parts, prompts, chosen=Chosen(solved=True))
    assert {found.solved for found in everything.values()} >= {True, False}
    for prompt in prompts:
        right = parts.task.correct(prompt.example, parts.decode(everything[prompt.id].first))
        assert everything[prompt.id].solved == (right if everything[prompt.id].answer is not None else None)
        if everything[prompt.id].solved is False:
            assert (solved[prompt.id].skipped, solved[prompt.id].mismatches) == ("the target's answer is wrong", ())
        else:
            assert solved[prompt.id] == everything[prompt.id]


def test_what_prompts_have_in_common_is_read_once():
    parts, shared = tiny_parts(seed=3), (8, 5, 7, 6)
    prompts = [dataclasses.replace(prompt, tokens=(*shared, *prompt.tokens)) for prompt in parts.prompts(5)]
    read = []
    miner = judge(parts, slots=1)
    alone = {}
    for prompt in prompts:
        (alone[prompt.id],) = judge(parts, slots=1).outcomes([prompt])
    handles = [
        model.register_forward_pre_hook(lambda module, args, kwargs: read.append(kwargs["input_ids"]), with_kwargs=True)
        for model in (parts.target, parts.draft)
    ]
    together = {one.prompt.id: one for one in miner.outcomes(prompts)}
    for handle in handles:
        handle.remove()
    begins = [ids for ids in read if tuple(ids[0, :4].tolist()) == shared]
    # Once by the target as it writes and by both as their states are read; the draft's choices are read once.
    assert len(begins) == 4
    for i, outcome in together.items():
        assert outcome.columns["last_response"] == alone[i].columns["last_response"]
        for name, values in outcome.tokens.items():
            np.testing.assert_allclose(values, alone[i].tokens[name], atol=1e-5)
