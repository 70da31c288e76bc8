"""Labels made by people."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch

from benchmarks.bundled_pair.recipe import build_tokenizer
from hf_lossy_assist import LossyValueError
from hf_lossy_assist.training.annotations import Annotation, annotated_examples, label, read_annotations
from tests.tiny_models import noisy_copy, tiny

TEMPLATE = (
    "{% for m in messages %}<user> {{ m['content'] }} </user>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(100)


@pytest.fixture(scope="module")
def models(tokenizer):
    target = tiny("llama")
    target.resize_token_embeddings(len(tokenizer))
    return {"target": target, "draft": noisy_copy(target, 0.05)}


def written(tmp_path, *lines):
    path = tmp_path / "marked.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


GOOD = {"prompt": "Tom has 3 pens.", "response": " He has 12 pens and 4 cups.", "spans": [[8, 10], [20, 21]]}


def test_tokens_with_a_marked_character_are_important(tokenizer):
    annotation = Annotation(1, GOOD["prompt"], GOOD["response"], ((8, 10), (20, 21)))
    ids, indices, labels = label(annotation, tokenizer)
    assert ids == tokenizer(GOOD["prompt"] + GOOD["response"])["input_ids"]
    # What has to come out, read off the decoded text: tokens follow each other without gaps.
    end = len(GOOD["prompt"])
    assert tokenizer.decode(ids[: indices[0]], skip_special_tokens=True) == GOOD["prompt"]
    for i, important in zip(indices, labels, strict=True):
        start, end = end, len(tokenizer.decode(ids[: i + 1], skip_special_tokens=True))
        marked = {8, 9, 20} & set(range(start - len(GOOD["prompt"]), end - len(GOOD["prompt"])))
        assert important is bool(marked)
    assert end == len(GOOD["prompt"] + GOOD["response"])
    assert any(labels)
    assert not all(labels)


def test_a_chat_template_makes_the_prompt_a_turn(tokenizer):
    chat = copy.deepcopy(tokenizer)
    chat.chat_template = TEMPLATE
    ids, indices, _ = label(Annotation(1, "How many?", " Four.", ()), chat)
    text = "<user> How many? </user>\n<assistant>"
    assert ids == chat(text + " Four.", add_special_tokens=False)["input_ids"]
    assert chat.decode([ids[i] for i in indices]) == " Four."


def test_states_are_those_of_a_forward(tokenizer, models):
    annotations = [
        Annotation(1, GOOD["prompt"], GOOD["response"], ((8, 10),)),
        Annotation(2, "Ann has 2.", " Yes.", ()),
        Annotation(3, GOOD["prompt"], " He has 9.", ((8, 9),)),
    ]
    done = []
    examples = annotated_examples(annotations, tokenizer, models, on_annotation=done.append)
    assert done == [1, 2, 3]
    row = 0
    for annotation, prompt in zip(annotations, (0, 1, 0), strict=True):
        ids, indices, labels = label(annotation, tokenizer)
        rows = slice(row, row := row + len(indices))
        assert examples.labels[rows].tolist() == labels
        assert (examples.prompts[rows] == prompt).all()
        for role, model in models.items():
            with torch.no_grad():
                states = model.model(torch.tensor([ids])).last_hidden_state[0].numpy()
            np.testing.assert_allclose(examples.states[f"{role}_draft"][rows], states[indices], atol=1e-5)
            before = states[np.array(indices) - 1]
            np.testing.assert_allclose(examples.states[f"{role}_previous"][rows], before, atol=1e-5)
    assert row == len(examples)


def test_a_file_is_read_line_by_line(tmp_path):
    path = written(tmp_path, GOOD, "", {**GOOD, "spans": [], "annotator": "Eve"})
    first, second = read_annotations(path)
    assert first.spans == ((8, 10), (20, 21))
    assert (second.line, second.spans) == (3, ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "line 2 of `annotations` can't be read as JSON"),
        ("[1, 2]", r"line 2 of `annotations` has to be an object, but is '\[1, 2\]'"),
        ({"prompt": "", "response": ""}, "line 2 of `annotations` lacks 'spans'"),
        ({"response": "", "spans": []}, "line 2 of `annotations` lacks 'prompt'"),
        ({**GOOD, "response": 3}, "'response' in line 2 of `annotations` has to be a str, but is 3"),
        ({**GOOD, "spans": "all"}, "'spans' in line 2 of `annotations` has to be a list"),
        ({**GOOD, "spans": [3, 4]}, "a span in line 2 of `annotations`"),
        ({**GOOD, "spans": [[3]]}, "a span in line 2"),
        ({**GOOD, "spans": [[3, 4.5]]}, "a span in line 2"),
        ({**GOOD, "spans": [[False, True]]}, "a span in line 2"),
        ({**GOOD, "spans": [[5, 3]]}, r"a span in line 2 .* but is \[5, 3\]"),
        ({**GOOD, "spans": [[5, 5]]}, "a span in line 2"),
        ({**GOOD, "spans": [[20, 28]]}, "a span in line 2 .* <= 27"),
        ({**GOOD, "spans": [[-1, 2]]}, "a span in line 2"),
        ({**GOOD, "spans": [[6, 9], [2, 7]]}, r"spans in line 2 .* \[2, 7\] and \[6, 9\] overlap"),
    ],
    ids=str,
)
def test_bad_lines_are_named(tmp_path, line, message):
    with pytest.raises(LossyValueError, match=message):
        read_annotations(written(tmp_path, GOOD, line))


def test_an_empty_or_missing_file(tmp_path):
    with pytest.raises(LossyValueError, match="is empty"):
        read_annotations(written(tmp_path, "", " "))
    with pytest.raises(LossyValueError, match=r"`annotations` .*No such file"):
        read_annotations(tmp_path / "nowhere.jsonl")


def test_a_slow_tokenizer_cannot_place_its_tokens(models):
    class Slow:
        is_fast = False

    with pytest.raises(LossyValueError, match=r"a fast tokenizer, .* has a Slow"):
        annotated_examples([Annotation(1, "a", "b", ())], Slow(), models)


def test_a_response_needs_something_before_it(tokenizer, models):
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(LossyValueError, match="'prompt' in line 4"):
        annotated_examples([Annotation(4, "", " Yes.", ())], bare, models)
