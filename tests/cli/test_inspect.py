"""``lossy-assist inspect``."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hf_lossy_assist import pairs
from tests.cli.running import invoke

PROMPT = "Question: Ada has 5 apples.\nAnswer:"
ANSWER = re.compile("<dt>answer</dt><dd>(right|wrong|cut off)</dd>")


def page_of(folder: Path, options: str, *words: str) -> str:
    """Run the command, and return the page that it has written."""
    out = folder / "page.html"
    result = invoke(["inspect", *options.split(), "--out", out, *words], env={"COLUMNS": "160"})
    assert (result.exit_code, result.stdout) == (0, f"written: {out}\n"), result.output
    return out.read_text(encoding="utf-8")


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*)</h2>", page)


def test_modes_of_the_pair_stand_side_by_side(bundled, tmp_path: Path):
    options = "--pair arithmetic --modes plain,topk@4:k=3,topk+typical --max-new-tokens 12"
    page = page_of(tmp_path, options, PROMPT)
    assert headings(page) == ["plain", "topk@4:k=3", "topk+typical"]
    assert "Ada has 5 apples." in page
    assert "q, by the draft" in page


def test_models_of_one_s_own_continue_a_prompt(tiny_pair_folder, tmp_path: Path):
    models = f"--model {tiny_pair_folder / 'target'} --assistant {tiny_pair_folder / 'draft'}"
    page = page_of(tmp_path, f"{models} --max-new-tokens 8 --sample --seed 3", PROMPT)
    assert headings(page) == ["lossless", "min_p"]


def test_the_page_of_the_default_problem_has_a_title_and_says_whether_answers_are_right(bundled, tmp_path: Path):
    page = page_of(tmp_path, "--pair arithmetic --max-new-tokens 8")
    assert re.findall(r"<h1>(.*)</h1>", page) == ["What became of every token"]
    assert ANSWER.findall(page) == ["cut off", "cut off"]


def test_a_lossy_rule_stands_beside_the_lossless_one_and_keeps_tokens_of_its_own(tmp_path: Path):
    page = page_of(tmp_path, "--pair arithmetic --modes lossless,min_p,dropmatch --seed 0")
    assert headings(page) == ["lossless", "min_p", "dropmatch"]
    assert ANSWER.findall(page)[::2] == ["right", "right"]
    lossless, lossy, _ = page.split("<h2>")[1:]
    assert "kept only by min_p" not in lossless
    assert "kept only by min_p" in lossy


def test_a_file_is_replaced_only_if_that_is_said(bundled, tmp_path: Path):
    out, short = tmp_path / "page.html", "--pair arithmetic --max-new-tokens 4"
    out.write_text("mine")
    refused = invoke(["inspect", *short.split(), "--out", out])
    assert refused.exit_code == 2
    assert "is there; choose another, or add `--overwrite`" in refused.stderr.replace("\n", " ")
    assert out.read_text() == "mine"
    assert len(headings(page_of(tmp_path, f"{short} --overwrite"))) == 2


def test_a_folder_that_can_t_be_written_to_is_refused_before_models_are_loaded(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(pairs.Pair, "load", lambda *_, **__: pytest.fail("models were loaded"))
    refused = invoke(["inspect", "--pair", "arithmetic", "--out", tmp_path / "page.html"])
    assert "`--out` has to be a file in a folder that can be written to" in refused.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    "given", ["--assistant eagle3", "--assistant dflash", "--prompt-lookup 3", "--assistant draft --prompt-lookup 3"]
)
def test_every_drafter_can_be_named(tmp_path: Path, given: str):
    page = page_of(tmp_path, f"--pair arithmetic {given} --modes plain,lossless --max-new-tokens 8")
    assert headings(page) == ["plain", "lossless"]
