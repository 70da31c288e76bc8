"""Records: what is there is kept, nothing of another plan is added, and no death at any moment loses a row."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.store import folder as files
from hf_lossy_assist.store.folder import MANIFEST
from hf_lossy_assist.store.records import Records
from hf_lossy_assist.values import Checked, Count, Text

PLAN = {"task": "t", "sizes": {"a": 1}, "modes": {"a": {"k": 1}}, "problems": [7, 8], "runs": [{"date": "today"}]}


@dataclass(frozen=True)
class Line(Checked):
    mode: Text
    id: Count
    text: Text = ""
    ids: tuple[int, ...] = ()


class Lines(Records[Line]):
    row_type, keys, command, file = Line, ("mode", "id"), "evaluate", "lines.jsonl"
    kinds = {"modes": dict, "problems": list}  # noqa: RUF012
    growing = frozenset({"modes", "problems"})


def line(mode: str, id: int) -> Line:
    return Line(mode, id, f"naïve «{id}»\nline", (1, id))


def arrays(id: int) -> dict[str, np.ndarray]:
    return {"x": np.full((id, 3), id, dtype=np.float32), "kept": np.array([True, False]), "y": np.arange(8).T[::2]}


def check(records: Lines, ids) -> None:
    assert sorted(records.done()) == [("a", id) for id in ids]
    for id in ids:
        assert records["a", id] == line("a", id)
        found = records.arrays(("a", id))
        assert found.keys() == arrays(id).keys()
        for name, array in arrays(id).items():
            np.testing.assert_array_equal(found[name], array, strict=True)


@pytest.mark.parametrize("kept", [False, True])
def test_rows_come_back_as_they_went(tmp_path, kept):
    records = Lines(tmp_path / "deep" / "out" if kept else None, PLAN)
    for id in range(4):
        records.add(line("a", id), **arrays(id))
        check(records, range(id + 1))
        if kept:  # on the disk, and readable by others, before the next one
            check(Lines(records.folder), range(id + 1))
    records.add(line("b", 0))
    assert records.arrays(("b", 0)) == {}
    assert [(row.mode, row.id) for row in records] == [*(("a", id) for id in range(4)), ("b", 0)]


def test_lines_have_the_fields_of_a_row(tmp_path):
    Lines(tmp_path, PLAN).add(line("a", 1))
    assert json.loads((tmp_path / "lines.jsonl").read_text()) == {
        "mode": "a", "id": 1, "text": "naïve «1»\nline", "ids": [1, 1],
    }  # fmt: skip
    assert len(Lines(tmp_path, PLAN).plan["runs"]) == 2
    assert len(Lines(tmp_path).plan["runs"]) == 2, "a reader adds no run"


def test_the_latest_of_equal_rows_counts(tmp_path):
    for id, text in enumerate(("failed", "right")):
        Lines(tmp_path, PLAN).add(Line("a", 0, text), **arrays(id + 1))
    found = Lines(tmp_path)
    assert (found["a", 0].text, len(found), len(found.arrays(("a", 0))["x"])) == ("right", 1, 2)


@pytest.mark.parametrize("torn", [-1, -20, -40, "»"])
def test_a_line_that_was_cut_off_is_dropped_and_written_anew(tmp_path, torn):
    records = Lines(tmp_path, PLAN)
    for id in range(2):
        records.add(line("a", id), **arrays(id))
    path = tmp_path / "lines.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(torn.encode()) + 1 if isinstance(torn, str) else torn])
    again = Lines(tmp_path, PLAN)
    check(again, [0])
    again.add(line("a", 1), **arrays(1))
    check(Lines(tmp_path), [0, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "u"}, "`task` was 't' and is 'u'"),
        ({"extra": 1}, "`extra` was None and is 1"),
        ({"sizes": {"a": 1, "b": 2}}, "`b` of `sizes` was None and is 2"),
        ({"modes": {"a": {"k": 2}}}, "`a` of `modes` was {'k': 1} and is {'k': 2}"),
        ({"problems": [7, 9]}, "the problems are other ones"),
    ],
)
def test_another_plan_is_refused(tmp_path, change, message):
    Lines(tmp_path, PLAN)
    before = (tmp_path / MANIFEST).read_bytes()
    with pytest.raises(LossyValueError, match="`out` has to be a new folder or hold data") as error:
        Lines(tmp_path, PLAN | change)
    assert message in str(error.value)
    assert (tmp_path / MANIFEST).read_bytes() == before


def test_what_may_grow_grows(tmp_path):
    Lines(tmp_path, PLAN)
    Lines(tmp_path, PLAN | {"modes": {"b": {}}, "problems": [7, 8, 9]})
    plan = Lines(tmp_path, PLAN | {"problems": [7]}).plan
    assert (plan["modes"], plan["problems"]) == ({"a": {"k": 1}, "b": {}}, [7, 8, 9])


def test_what_is_no_such_folder_is_refused(tmp_path):
    with pytest.raises(LossyValueError, match="`folder` has to be a folder that `lossy-assist evaluate` wrote"):
        Lines(tmp_path)
    (tmp_path / "lines.jsonl").write_text('{"mode": "a"}\n')
    with pytest.raises(LossyValueError, match=r"new folder, but .* has a lines\.jsonl"):
        Lines(tmp_path, PLAN)
    (tmp_path / MANIFEST).write_text(json.dumps(PLAN))
    lines = {
        b'{"mode": "a"}': "missing", b'{"mode": 1, "id": 0}': "`mode`", b"[]": "has to be an object",
        b"1" * 51: "has to be an object", b'{"mode": "\\ud800", "id": 0}': "as JSON", b'{"mode": "\xc2"}': "as JSON",
    }  # fmt: skip
    for text, said in lines.items():
        (tmp_path / "lines.jsonl").write_bytes(b'{"mode": "a", "id": 0}\n\n' + text + b"\n")
        with pytest.raises(LossyValueError, match=rf"line 3 of .*{said}"):
            Lines(tmp_path, PLAN)
    plan = json.dumps(PLAN)
    others = ("[]", "{}", plan[:-1], plan.replace("[7, 8]", '"x"'), plan.replace('{"a": {"k": 1}}', "[1]"))
    for text in (*others, json.dumps([*PLAN.items()])):
        (tmp_path / MANIFEST).write_text(text)
        for given in (PLAN, None):
            argument = "out" if given else "folder"
            with pytest.raises(
                LossyValueError, match=rf"`{argument}` .* that `lossy-assist evaluate` wrote.*{MANIFEST}"
            ):
                Lines(tmp_path, given)
        assert (tmp_path / MANIFEST).read_text() == text
    (tmp_path / "file").touch()
    with pytest.raises(LossyValueError, match="`out` has to be a place to write to"):
        Lines(tmp_path / "file", PLAN)


@pytest.mark.parametrize("damage", ["missing", "shorter", "other"])
def test_a_row_with_damaged_arrays_is_made_again(tmp_path, damage):
    records = Lines(tmp_path, PLAN)
    for id in range(2):
        records.add(line("a", id), **arrays(id))
    path = records._path(("a", 1))
    content = path.read_bytes()
    path.unlink() if damage == "missing" else path.write_bytes(
        content[:-1] if damage == "shorter" else content[:-1] + b"\1"
    )
    with pytest.raises(LossyValueError, match=r"is missing or damaged; repeat the `evaluate` command"):
        Lines(tmp_path).arrays(("a", 1))
    again = Lines(tmp_path, PLAN)
    with pytest.warns(UserWarning, match="makes it again"):
        assert again.done() == {("a", 0)}
    again.add(line("a", 1), **arrays(1))
    check(Lines(tmp_path), [0, 1])


class Killed(BaseException):
    pass


def test_a_death_at_any_moment_loses_nothing(tmp_path, monkeypatch):
    """Die at every single write, rename and flush of a run in turn; every time go on after it."""
    left = 0

    def mortal(function):
        def wrapped(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return function(*args, **kwargs)

        return wrapped

    write = Path.write_bytes

    def half_written(path, content):
        write(path, content[: len(content) // 2])
        mortal(lambda: None)()
        return write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", mortal(os.replace))
        patched.setattr(files.os, "fsync", mortal(os.fsync))
        patched.setattr(Path, "write_bytes", half_written)
        for moment in range(200):
            left, told = moment, []
            folder = tmp_path / str(moment)
            try:
                records = Lines(folder, PLAN)
                for id in range(3):
                    records.add(line("a", id), **arrays(id))
                    told.append(id)
            except Killed:
                left = 10**6
                records = Lines(folder, PLAN)
                check(records, told)
                for id in range(len(told), 3):
                    records.add(line("a", id), **arrays(id))
            check(Lines(folder), range(3))
            if told == [0, 1, 2]:
                break
        assert moment > 12


def _write(folder: Path, number: int) -> None:
    records = Lines(folder, PLAN)
    for id in range(20):
        records.add(line(f"p{number}", id), **arrays(id))


def test_processes_write_side_by_side(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    found = Lines(tmp_path)
    assert found.done() == {(f"p{number}", id) for number in range(3) for id in range(20)}
    assert len(found.plan["runs"]) == 3
