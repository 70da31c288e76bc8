"""Progress on terminals, by the first process, and nowhere else."""

from __future__ import annotations

import pytest

from hf_lossy_assist.progress import track


@pytest.mark.parametrize(("terminal", "rank", "shown"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_only_the_first_process_at_a_terminal_shows_it(terminal, rank, shown, capsys, monkeypatch):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    assert [*track(iter("abc"), total=3, what="answering")] == ["a", "b", "c"]
    out, err = capsys.readouterr()
    assert ("answering" in err and "3/3" in err) == shown
    assert (out, bool(err)) == ("", shown)


def test_what_fails_midway_ends_the_bar(capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with pytest.raises(ZeroDivisionError):
        list(track((1 / n for n in (1, 0)), total=2, what="dividing"))
    assert capsys.readouterr().err.endswith("\x1b[2K")  # the line is erased
