"""Answers in a folder: what is there is kept, and nothing of other settings is added to it. Rows of measurements."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.evaluation import meters
from hf_lossy_assist.evaluation.answers import MANIFEST, RESULTS, Answer, AnswerStore, load_answers
from hf_lossy_assist.evaluation.requests import Stages

PLAN = {"task": "t", "seed": 0, "modes": {"a": {"k": 1}}, "problems": [7, 8], "runs": [{"date": "today"}]}


STAGES = Stages(0.1, 0.2, None, 0.3, 4, 5, 0.025, 0.04, 0.06)


def answer(mode: str, id: int) -> Answer:
    more = {"repeats": (0.4, 0.5), "stages": STAGES if id == 0 else None}
    return Answer(mode, id, 1.0, 5, 2, 3, 0.5, f"naïve «{id}»\nline", **more)


def test_answers_are_lines_with_the_fields_that_are_promised(tmp_path):
    store = AnswerStore(tmp_path / "deep" / "out", PLAN)
    store.add([answer("a", 0), answer("a", 1)])
    lines = [json.loads(line) for line in (store.folder / RESULTS).read_text(encoding="utf-8").splitlines()]
    assert [list(line) for line in lines] == [
        ["mode", "id", "score", "tokens", "rounds", "accepted", "seconds", "text", "lossy", "cut", "prompt",
         "drafted", "memory", "repeats", "joules", "stages", "ids"]
    ] * 2  # fmt: skip
    assert AnswerStore(store.folder, PLAN).known == {("a", 0): answer("a", 0), ("a", 1): answer("a", 1)}
    manifest, answers = load_answers(store.folder)
    assert answers == [answer("a", 0), answer("a", 1)]
    assert len(manifest["runs"]) == 2


@pytest.mark.parametrize("torn", [1, 20, 60])
def test_a_line_that_was_cut_off_is_dropped_and_written_anew(tmp_path, torn):
    store = AnswerStore(tmp_path, PLAN)
    store.add([answer("a", 0), answer("a", 1)])
    path = tmp_path / RESULTS
    path.write_bytes(path.read_bytes()[:-torn])
    again = AnswerStore(tmp_path, PLAN)
    assert list(again.known) == [("a", 0)]
    again.add([answer("a", 1)])
    assert load_answers(tmp_path)[1] == [answer("a", 0), answer("a", 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "`seed` was 0 and is 1"),
        ({"extra": 1}, "`extra` was None and is 1"),
        ({"modes": {"a": {"k": 2}}}, "`a` was {'k': 1} and is {'k': 2}"),
        ({"problems": [7, 9]}, "the problems are other ones"),
    ],
)
def test_other_settings_are_refused(tmp_path, change, message):
    AnswerStore(tmp_path, PLAN)
    before = (tmp_path / MANIFEST).read_bytes()
    with pytest.raises(LossyValueError) as error:
        AnswerStore(tmp_path, PLAN | change)
    assert message in str(error.value)
    assert (tmp_path / MANIFEST).read_bytes() == before


def test_modes_and_problems_may_be_added(tmp_path):
    AnswerStore(tmp_path, PLAN)
    AnswerStore(tmp_path, PLAN | {"modes": {"b": {}}, "problems": [7, 8, 9]})
    AnswerStore(tmp_path, PLAN | {"problems": [7]})
    manifest, _ = load_answers(tmp_path)
    assert manifest["modes"] == {"a": {"k": 1}, "b": {}}
    assert manifest["problems"] == [7, 8, 9]


def test_what_is_no_folder_of_answers_is_refused(tmp_path):
    with pytest.raises(LossyValueError, match="that `lossy-assist evaluate` wrote"):
        load_answers(tmp_path)
    (tmp_path / RESULTS).write_text("{}\n")
    with pytest.raises(LossyValueError, match=r"new folder, but .* has a results\.jsonl"):
        AnswerStore(tmp_path, PLAN)
    (tmp_path / MANIFEST).write_text(json.dumps(PLAN))
    with pytest.raises(LossyValueError, match=r"line 1 of .* missing"):
        AnswerStore(tmp_path, PLAN)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(LossyValueError, match="that `lossy-assist evaluate` wrote"):
        AnswerStore(tmp_path, PLAN)
    (tmp_path / "file").touch()
    with pytest.raises(LossyValueError, match="`out` has to be a place to write to"):
        AnswerStore(tmp_path / "file", PLAN)


LINE = asdict(Answer("a", 0, 1.0, 4, 2, 2, 0.5, "yes"))
STRANGE = (None, "x", -1, 1.5, True, float("nan"), 2**70, [], {})
FINE = {
    "score": (None,), "cut": (True,), "repeats": ([],), "ids": ([],), "stages": (None,),
    **dict.fromkeys(("seconds", "joules"), (None, 1.5, 2**70)),
    **dict.fromkeys(("id", "tokens", "rounds", "accepted", "lossy"), (2**70,)),
    **dict.fromkeys(("mode", "text"), ("x",)),
    **dict.fromkeys(("prompt", "drafted", "memory"), (None, 2**70)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINE)
def test_a_line_with_a_value_of_another_type_is_named(tmp_path, name):
    AnswerStore(tmp_path, PLAN)
    for value in STRANGE:
        (tmp_path / RESULTS).write_text(f"{json.dumps(LINE)}\n{json.dumps({**LINE, 'id': 1, name: value})}\n")
        if any(value is fine or (value == fine and type(value) is type(fine)) for fine in FINE[name]):
            load_answers(tmp_path)
            continue
        with pytest.raises(LossyValueError, match=f"line 2 of .*`{name}`"):
            AnswerStore(tmp_path, PLAN)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({**LINE, "score": 0.5}, "scored 0.5 and not 1"),
        ({**LINE, "text": "no"}, "another one of 'a' to problem 0"),
        ({**LINE, "more": 1}, "unexpected keyword argument 'more'"),
        ([LINE], "has to be an object"),
        ("\ud800", "as JSON"),
        (10**50, "has to be an object"),
    ],
)  # fmt: skip
def test_a_line_that_does_not_belong_there_is_named(tmp_path, line, said):
    AnswerStore(tmp_path, PLAN)
    (tmp_path / RESULTS).write_text(f"{json.dumps(LINE)}\n\n{json.dumps(line)}\n")
    with pytest.raises(LossyValueError, match=f"line 3 of .*{said}"):
        load_answers(tmp_path)
    (tmp_path / RESULTS).write_text(f"{json.dumps(LINE)}\n{json.dumps({**LINE, 'seconds': 9.0})}\n")
    assert load_answers(tmp_path)[1] == [Answer(**LINE)]


def _write(folder, number: int) -> None:
    store = AnswerStore(folder, PLAN)
    for i in range(30):
        store.add([answer(f"p{number}", i)])


def test_processes_write_whole_lines_side_by_side(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    manifest, answers = load_answers(tmp_path)
    assert sorted((a.mode, a.id) for a in answers) == [(f"p{n}", i) for n in range(3) for i in range(30)]
    assert len(manifest["runs"]) == 3


def _write_until_killed(folder, told) -> None:
    store = AnswerStore(folder, PLAN)
    for i in range(10**6):
        store.add([answer("a", i)])
        told.send(i)


def test_a_killed_process_loses_nothing_that_it_has_told(tmp_path):
    context = multiprocessing.get_context("fork")
    for run in range(5):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_write_until_killed, args=(tmp_path / str(run), writer))
        process.start()
        last = [reader.recv() for _ in range(5 + run)][-1]
        process.kill()
        process.join(60)
        store = AnswerStore(tmp_path / str(run), PLAN)
        assert {("a", i) for i in range(last + 1)} <= store.known.keys()
        assert all(store.known["a", i] == answer("a", i) for _, i in store.known)


def test_the_origin_of_a_measurement_has_no_folders(monkeypatch):
    monkeypatch.setattr("sys.argv", ["x", "--target", "/home/me/target", "--task-data=../data.jsonl"])
    origin = meters.provenance("cpu", gamma=4, draft="/home/me/draft")
    assert {"torch", "transformers", "argv", "date", "threads"} <= set(origin)
    assert (origin["device"], origin["gamma"], origin["draft"]) == ("cpu", 4, "draft")
    assert origin["argv"][-3:] == ["--target", "target", "--task-data=data.jsonl"]


@pytest.mark.parametrize(
    ("started", "said"),
    [
        (["/bin/python", "/bin/lossy-assist"], "lossy-assist evaluate --out x"),
        (["/bin/python", "-u", "-m", "hf_lossy_assist"], "lossy-assist evaluate --out x"),
        (["/bin/python", "-m", "benchmarks.grown_models"], "python -m benchmarks.grown_models evaluate --out x"),
    ],
)
def test_the_command_line_is_that_which_one_would_type(started, said):
    arguments = ["evaluate", "--out", "x"]
    assert meters._command_line([*started, *arguments], arguments) == said.split()
