"""Searches that are cut off and go on."""

from __future__ import annotations

import json

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.tasks import Example
from hf_lossy_assist.training.label_folder import UnfinishedSearches, record_of, search_of
from hf_lossy_assist.training.prompts import ResponseCost
from hf_lossy_assist.training.search import Ask, Continue, Found, Learned, Mismatch, search
from tests.training.parts import Checksum, by_prompt, tiny_parts


class Counting(Checksum):
    """Counts its questions, and is interrupted at one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.last = 0, None

    def extract_answer(self, text):
        self.asked += 1
        if self.asked == self.last:
            raise KeyboardInterrupt
        return super().extract_answer(text)


@pytest.mark.parametrize(("slots", "share"), [(1, 0.4), (1, 0.9), (3, 0.4), (3, 0.6), (3, 0.9)])
def test_a_search_that_is_cut_off_goes_on_with_the_next_mismatch(slots: int, share: float, tmp_path):
    task = Counting()
    parts = tiny_parts(task=task)
    prompts = parts.prompts(4)
    whole = by_prompt(parts, prompts, slots=slots)
    asked, task.asked = task.asked, 0
    task.last = round(share * asked)
    finished = {}
    results = parts.searches(slots=slots, unfinished=UnfinishedSearches(tmp_path)).run(prompts)
    with pytest.raises(KeyboardInterrupt):
        finished.update((one.prompt.id, one.found) for one in results)
    begun = json.loads((tmp_path / "unfinished-0.json").read_text())
    assert any(record["mismatches"] for record in begun)
    left = [prompt for prompt in prompts if prompt.id not in finished]
    rest = parts.searches(slots=slots, unfinished=UnfinishedSearches(tmp_path)).run(left)
    assert finished | {one.prompt.id: one.found for one in rest} == whole
    # A question compares two texts, and every slot may have been at one that is asked again.
    assert task.asked <= asked + 2 * slots + 2 * len(left)
    assert not (tmp_path / "unfinished-0.json").exists()


def test_the_targets_answer_is_kept_before_any_label():
    steps = search(Example(prompt="p", answer="9"), Checksum(), str)
    assert next(steps) == Continue(())
    assert isinstance(steps.send((4, 5)), Ask)
    assert steps.send("9") == Learned(Found((4, 5), (4, 5), "9"))


def test_files_of_all_processes_are_read(tmp_path):
    cost, mismatch = ResponseCost(7), Mismatch(1, 4, 5, important=True)
    short, long = Found((3, 4), (3, 4), "1", ()), Found((3, 4), (3, 4), "1", (mismatch,))
    for process, found in enumerate((long, short)):
        UnfinishedSearches(tmp_path, process).keep({2: (cost, found)})
    assert UnfinishedSearches(tmp_path).get(2)[1] == long
    assert UnfinishedSearches(tmp_path).get(2)[0].target_tokens == 7
    assert UnfinishedSearches(tmp_path).get(3)[1] is None
    assert search_of(record_of(2, cost, long))[1][1] == long


@pytest.mark.parametrize("text", ["", "[1]", '{"prompt_id": 1}', '[{"prompt_id": 1}]'])
def test_a_file_that_is_damaged_is_named(text: str, tmp_path):
    (tmp_path / "unfinished-0.json").write_text(text)
    with pytest.raises(LossyValueError, match=r"unfinished-0\.json"):
        UnfinishedSearches(tmp_path)
