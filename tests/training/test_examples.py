"""Labelled states: mined data, good and bad, and data from which no head can be trained."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.training.examples import check_finite, read_judged, read_ratios, read_together
from hf_lossy_assist.training.labelling import LabelFolder
from tests.training.synthetic import DRAFT, TARGET, judged, ratios, write_judged, write_ratios


def by_prompt(examples):
    order = np.argsort(examples.prompts, kind="stable")
    return {name: state[order] for name, state in examples.states.items()}, examples.labels[order], order


def test_what_was_written_is_read(tmp_path):
    examples = judged(prompts=20)
    found = read_judged(write_judged(tmp_path, examples))
    states, labels, _ = by_prompt(found.examples)
    assert list(states) == ["target_previous", "target_draft", "draft_previous", "draft_draft"]
    for name, state in states.items():
        assert state.dtype == np.float32
        assert (state == examples.states[name]).all()
    assert (labels == examples.labels).all()
    assert (np.sort(found.examples.prompts) == examples.prompts).all()
    assert (found.origin.target, found.origin.draft, found.origin.task) == (TARGET, DRAFT, "arithmetic")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    ordered = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
    assert found.origin.data["sha256"] == hashlib.sha256(ordered.encode()).hexdigest()
    assert (found.origin.data["tokens"], found.origin.data["problems"]) == (100, [])


def test_folders_are_read_together(tmp_path):
    """Prompts of several folders stay apart, and states that some lack are left out."""
    parts = [judged(prompts=20), judged(prompts=10).only(["target_previous", "target_draft", "draft_draft"])]
    folders = [write_judged(tmp_path / name, part) for name, part in zip("ab", parts, strict=True)]
    one, two = (read_judged(folder) for folder in folders)
    both = read_together(folders)
    assert len(np.unique(both.examples.prompts)) == 30
    assert (both.examples.labels == np.concatenate([one.examples.labels, two.examples.labels])).all()
    assert [*both.examples.states] == [*two.examples.states] != [*one.examples.states]
    for name, state in both.examples.states.items():
        assert (state == np.concatenate([one.examples.states[name], two.examples.states[name]])).all()
    assert both.origin.data["others"] == [two.origin.data]
    assert read_together(folders[:1]).origin == one.origin
    other = write_judged(tmp_path / "other", judged(prompts=4), target=asdict(DRAFT))
    with pytest.raises(LossyValueError, match=r"one pair of models, but '.*other' differs from '.*a'"):
        read_together([folders[0], other])
    again = write_judged(tmp_path / "again" / "a", judged(prompts=5))
    with pytest.raises(LossyValueError, match=r"'.*again/a' and '.*/a' have 5 in common"):
        read_together([*folders, again])


@pytest.mark.parametrize(("write", "read"), [
    (lambda folder: write_judged(folder, judged(prompts=6)), lambda folder: read_judged(folder).examples.prompts),
    (lambda folder: write_ratios(folder, ratios(prompts=6)), lambda folder: read_ratios(folder)[0].prompts),
])  # fmt: skip
def test_a_prompt_that_was_mined_twice_is_one(tmp_path, write, read):
    """No fold may judge tokens of a text that others are fitted to."""
    plan = LabelFolder(write(tmp_path)).plan
    before, store = read(tmp_path), LabelFolder(tmp_path, plan)
    first, *_, last = store
    store.add(replace(last, prompt=first.prompt), **store.arrays(last.id))
    after = read(tmp_path)
    assert len(np.unique(before)) == 6
    assert (np.sort(after) == np.sort(np.where(before == last.id, first.id, before))).all()


def test_ratios(tmp_path):
    data = ratios(prompts=20)
    found, origin = read_ratios(write_ratios(tmp_path, data))
    order = np.argsort(found.prompts, kind="stable")
    assert origin.draft == DRAFT
    for position, state in found.states.items():
        assert (state[order] == data.states[position]).all()
    np.testing.assert_allclose(found.p[order], data.p, rtol=1e-6)
    np.testing.assert_allclose(found.q[order], data.q, rtol=1e-6)


def without_tokens(folder):
    store = LabelFolder(write_judged(folder, judged(prompts=4)), LabelFolder(folder).plan)
    for row in store:
        store.add(row)


def broken_ratios(folder):
    data = ratios(prompts=4)
    data.q[3] = np.nan
    write_ratios(folder, data)


@pytest.mark.parametrize(("write", "read", "said"), [
    (lambda x: None, read_judged, "`data` has to be a folder that `lossy-assist mine` wrote"),
    (lambda x: x.mkdir(), read_judged, r"manifest\.json"),
    (lambda x: write_judged(x, judged(prompts=4)), read_ratios, "'ratio', but .* 'judge'; use `.* train judge`"),
    (lambda x: write_ratios(x, ratios(prompts=4)), read_judged, "'judge', but .* 'ratio'; use `.* train verifier`"),
    (without_tokens, read_judged, "none of its 4 prompts has 'important'"),
    (lambda x: write_judged(x, judged(prompts=4), target=None), read_judged, "has to name the target.*`--model`"),
    (lambda x: write_judged(x, judged(prompts=4)), lambda x: read_judged(x, target=DRAFT),
     "`--model` is for data without a target, but .* has 'org/large'"),
    (broken_ratios, read_ratios, "column 'q' has NaN or infinite values in 1 of 20"),
])  # fmt: skip
def test_folders_that_can_not_be_read_say_why(tmp_path, write, read, said):
    write(tmp_path / "data")
    with pytest.raises(LossyValueError, match=said):
        read(tmp_path / "data")


def test_a_target_behind_an_api_may_be_named(tmp_path):
    write_judged(tmp_path, judged(prompts=4), target=None)
    assert read_judged(tmp_path, target=DRAFT).origin.target == DRAFT


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_states_that_are_not_finite(value):
    examples = judged()
    examples.states["draft_draft"][[3, 5], :] = value
    with pytest.raises(LossyValueError, match="'draft_draft' has NaN or infinite values in 2 of 600 tokens"):
        check_finite(examples)
