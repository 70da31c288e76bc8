"""GSM8K: its files, its splits, its prompts, and the number that a solution ends in."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.tasks.gsm8k import GSM8K, final_number

ROWS = [
    {"question": f"What is {i} + {i}?", "answer": f"{i}+{i}=<<{i}+{i}={2 * i}>>{2 * i}\n#### {2 * i}"}
    for i in range(400)
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def train(tmp_path):
    return write(tmp_path / "train.jsonl", ROWS[:300])


@pytest.fixture
def folder(tmp_path, train):
    write(tmp_path / "test.jsonl", ROWS[300:])
    return str(tmp_path)


def test_every_solution_is_correct(folder):
    task = GSM8K(folder)
    for split in task.splits:
        assert all(task.correct(example, example.solution) for example in task.examples(split, 1000))


def test_validation_is_cut_out_of_the_training_file_whatever_the_order_of_rows(tmp_path, train):
    task = GSM8K(train)
    assert task.splits == ("train", "validation")
    parts = {split: {*task.examples(split, 1000)} for split in task.splits}
    assert not parts["train"] & parts["validation"]
    assert len(parts["train"]) + len(parts["validation"]) == 300
    assert 0.01 < len(parts["validation"]) / 300 < 0.12  # 5 %, binomial, four standard deviations
    shuffled = GSM8K(write(tmp_path / "other.jsonl", random.Random(0).sample(ROWS[:300], 300)))
    assert {split: {*shuffled.examples(split, 1000)} for split in shuffled.splits} == parts


def test_a_file_s_name_tells_what_it_holds(tmp_path):
    path = write(tmp_path / "my_test_set.jsonl", ROWS)
    assert GSM8K(path).splits == ("test",)
    assert len(GSM8K(path).examples("test", 1000)) == 400


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: GSM8K(f"{folder}/test.jsonl").examples("train", 1), "`split`"),
        (lambda folder: GSM8K(f"{folder}/test.jsonl", shots=3), "`shots`"),
        *((lambda folder, x=x: GSM8K(folder, shots=x), "`shots` has to be an int >= 0") for x in (-1, 2.5, "2", True)),
        (lambda folder: GSM8K(f"{folder}/none"), "`data` .*none"),
        (lambda folder: GSM8K(f"{folder}/empty"), "`data` .*empty"),
    ],
)
def test_what_is_no_split_or_no_file_is_named(folder, make, message):
    Path(folder, "empty").mkdir()
    with pytest.raises(LossyValueError, match=message):
        make(folder)


def test_worked_problems_come_first_and_belong_to_no_split(folder):
    task = GSM8K(folder, shots=2)
    [example] = task.examples("test", 1)
    plain = GSM8K(folder)
    assert example.prompt == (
        "Question: What is 0 + 0?\nAnswer: 0+0=0\n#### 0\n\n"
        "Question: What is 1 + 1?\nAnswer: 1+1=2\n#### 2\n\n" + plain.examples("test", 1)[0].prompt
    )
    asked = {task.user_turn(e) for split in ("train", "validation") for e in task.examples(split, 1000)}
    assert len(asked) == 298
    assert not any("What is 1 + 1?" in question for question in asked)


def test_a_chat_model_sees_worked_problems_as_turns(folder):
    task = GSM8K(folder, shots=2)
    [example] = task.examples("test", 1)
    turns = task.turns(example)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant", "user"]
    assert turns[1]["content"] == "0+0=0\n#### 0\nThe final answer is 0."
    assert "Problem: What is 1 + 1?\n" in turns[2]["content"]
    assert turns[4:] == GSM8K(folder).turns(GSM8K(folder).examples("test", 1)[0])
    assert "Problem: What is 300 + 300?\n" in turns[4]["content"]
    assert "Question:" not in turns[4]["content"]
    assert '"The final answer is N."' in turns[4]["content"]
    assert "What is 1 + 1?" not in turns[4]["content"]
    assert task.extract_answer(turns[3]["content"]) == "2"


def test_a_question_that_the_model_asks_itself_does_not_count(folder):
    task = GSM8K(folder)
    assert task.extract_answer(" It is 6.\n\nQuestion: What is 2 + 2?\nAnswer: 4") == "6"


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("train.jsonl", b'{"question": "a", "answer": "#### 1"}\n\n{"question": ', r"line 3 of `data` \(train.jsonl\)"),
        ("train.jsonl", b'{"question": "a"}', "'answer' .* line 1 "),
        ("train.jsonl", b'{"question": "a", "answer": 3}', "'answer' .* line 1 "),
        ("train.jsonl", b'{"question": "", "answer": "#### 3"}', "'question' .* line 1 "),
        ("train.jsonl", b'{"question": "a", "answer": "none"}', "'#### N'"),
        ("train.jsonl", b"\n", "`data`"),
        ("train.jsonl.gz", b"no gzip at all", "`data`"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LossyValueError, match=place):
        GSM8K(str(tmp_path / name)).examples("train", 1)


def test_without_data_the_hub_is_asked(monkeypatch):
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return ROWS[:100]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = GSM8K()
    assert task.splits == ("train", "validation", "test")
    assert task.examples("test", 1)[0].answer == "0"
    assert len(task.examples("train", 1000)) + len(task.examples("validation", 1000)) == 100
    assert asked == [(("openai/gsm8k", "main"), {"split": split}) for split in ("test", "train")]

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(LossyValueError, match=r"Couldn't reach .* local JSONL"):
        GSM8K().examples("test", 1)


NUMBERS = {
    "18": ("#### 18", "18.", r"\boxed{18}", "**18**"),
    "1000": ("The answer is 1,000.00", "The answer is $1,000.00."),
    "5": ("It costs $5.", r"\$5", "€ 5", "10-5", "10 - 5", "(2)-5", "5/0", "The final answer is 5, because 2 + 3."),
    "-5": ("-$5", "$-5", "x = -5"),
    "50": ("The answer is 50 %.", "50%"),
    "18.5": ("18.50",),
    "0.5": (".5",),
    "7": ("007", "3 + 4 = 7"),
    "0": ("-0",),
    "-7": ("−7",),
    "0.75": ("3/4",),
    "1/3": ("1/3", "2/6"),
    "12345678.9": ("12,345,678.90",),
    "3": ("1,2,3",),
    "1234": ("The answer is **$1,234**.",),
    "4": ("The answer is 3. No: the answer is 4. That took 2 tries.",),
    "6": ("Answer: 6 (of 10)",),
    "8": ("I get 8, so the answer is",),
    "1080": ("#### 1,080\n",),
    None: ("٣ x²", "The answer is unknown", ""),
}


@pytest.mark.parametrize(("number", "text"), [(number, text) for number, texts in NUMBERS.items() for text in texts])
def test_final_number(number, text):
    assert final_number(text) == number


@given(st.integers(-(10**30), 10**30), st.integers(0, 6), st.booleans())
def test_writing_a_number_differently_does_not_matter(units, places, commas):
    value = Fraction(units, 10**places)
    whole, rest = divmod(abs(units), 10**places)
    text = f"{whole:,}" if commas else f"{whole}"
    text = ("-" if units < 0 else "") + text + (f".{rest:0{places}d}" if places else "")
    for written in (text, f"${text}", f"{text}%", f"{text}.", f"The answer is {text}"):
        assert Fraction(final_number(written)) == value
    assert final_number(final_number(text)) == final_number(text)


def test_a_model_that_repeats_a_digit_for_ever_gets_an_answer():
    assert final_number("3" * 100_000) == "3" * 100_000
