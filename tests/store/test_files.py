"""Files of others are read, or refused by name; so are places that can't be written to, or that a run writes to."""

from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.store.folder import (
    LOCK,
    Process,
    append_lines,
    claimed,
    folder_lock,
    json_lines,
    read_lines,
    read_text,
    write_json,
    writing,
)
from hf_lossy_assist.values import MOST_LEVELS, from_json
from tests.forking import elsewhere

ZIPPED = gzip.compress(b"text", mtime=0)
NO_JSON = {
    "nothing": b"",
    "half": b'{"a": ',
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "one level too many": b"[" * (MOST_LEVELS + 2) + b"]" * (MOST_LEVELS + 2),
    "an int of many digits": b"1" * 4301,
    "a half character": b'["\\ud800"]',
    "a half character as a key": b'{"\\udfff": 1}',
    "another encoding": '"é"'.encode("latin-1"),
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "several values": b"1 2",
}


@pytest.mark.parametrize("content", NO_JSON.values(), ids=NO_JSON.keys())
def test_what_is_no_json_is_named(content: bytes):
    with pytest.raises(LossyValueError, match=r"^`file` can't be read as JSON: .*; make it again$") as caught:
        from_json(content, "`file`", "; make it again")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "value", [None, 10**4000, 1.5, "\N{GRINNING FACE}\u2028\x1b", [[{"a": [{}]}]], ["x"] * 1000, {"": {"é": "\n"}}]
)
def test_json_comes_as_it_was_written(value):
    for content in (json.dumps(value), json.dumps(value, ensure_ascii=False).encode()):
        assert from_json(content, "it") == value
    levels = json.loads("[" * MOST_LEVELS + "]" * MOST_LEVELS)
    assert from_json(json.dumps(levels), "it") == levels


def test_lines_are_numbered_as_an_editor_does():
    assert [*json_lines('{"a": "\u2028"}\r\n\n  \n{"a": 2}', "x")] == [(1, {"a": "\u2028"}), (4, {"a": 2})]
    with pytest.raises(LossyValueError, match="line 3 of x has to be an object, but is '3'"):
        list(json_lines("{}\n\n3", "x"))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz"])
def test_a_text_is_read_with_a_mark_of_its_order_or_without(tmp_path: Path, name: str):
    for mark in (b"", b"\xef\xbb\xbf"):
        content = mark + "é\n".encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        assert read_text(tmp_path / name, "data") == "é\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"\xff"),
        ("a.txt", ZIPPED),
        ("a.gz", b"text"),
        ("a.gz", ZIPPED[:-4]),
        ("a.gz", ZIPPED[:12] + b"\xff" * 20),
        ("missing", None),
        ("", None),
        ("a\0b", None),
        ("a" * 5000, None),
    ],
)
def test_a_file_that_is_no_text_is_named(tmp_path: Path, name: str, content: bytes | None):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(LossyValueError, match=r"^`data` has to be a text file in UTF-8"):
        read_text(tmp_path / name, "data")


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("write", [append_lines, write_json], ids=lambda write: write.__name__)
def test_a_place_that_can_t_be_written_is_named_and_keeps_what_was_there(tmp_path: Path, monkeypatch, write):
    path = tmp_path / "rows.jsonl"
    append_lines(path, [{"a": 1}])
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full_disk)
        with pytest.raises(LossyValueError, match=r"`out` .*rows\.jsonl.*No space left"):
            write(path, [{"a": 2}])
    assert path.read_bytes() == before
    assert [*read_lines(path)] == [(1, {"a": 1})]
    for place in (path / "below", tmp_path / ("a" * 5000), Path("/dev/null/x")):
        for attempt in (
            lambda place=place: folder_lock(place), lambda place=place: write(place / "x", []),
            lambda place=place: claimed(place, Process()).__enter__(),
        ):  # fmt: skip
            with pytest.raises(LossyValueError, match=r"^`out` has to be a place to write to"):
                attempt()


def test_only_what_the_system_says_is_renamed():
    with pytest.raises(ZeroDivisionError), writing(Path("x")):
        raise ZeroDivisionError


@pytest.mark.parametrize("other", [Process(), Process(1, 2), Process(0, 3)])
def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path, other: Process):
    def claim(process: Process) -> None:
        with claimed(tmp_path / "out", process):
            pass

    with claimed(tmp_path / "out", Process()):
        with pytest.raises(LossyValueError, match="process 0 of 1 is at work"):
            elsewhere(lambda: claim(other))
        claim(Process())  # what the run calls may claim it again
        with pytest.raises(LossyValueError, match="process 0 of 1 is at work"):
            elsewhere(lambda: claim(other))
        assert (tmp_path / "out" / LOCK).exists()
        (tmp_path / "out" / "result").touch()
    elsewhere(lambda: claim(other))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["result"], "no lock is left, to be uploaded"


def test_the_processes_of_a_run_have_a_folder_together(tmp_path: Path):
    with claimed(tmp_path, Process(0, 2)):
        elsewhere(lambda: claimed(tmp_path, Process(1, 2)).__enter__())
        with pytest.raises(LossyValueError, match="process 0 of 2 is at work"):
            elsewhere(lambda: claimed(tmp_path, Process(0, 2)).__enter__())
