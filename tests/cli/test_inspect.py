"""``lossy-assist inspect``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hf_lossy_assist import pairs
from tests.cli.running import invoke

PROMPT = "Question: Ada has 5 apples.\nAnswer:"
ANSWER = re.compile("<dt>answer</dt><dd>(right|wrong)</dd>")


def run(*arguments: str):
    return invoke(["inspect", *arguments], env={"COLUMNS": "160"})


def headings(path: Path) -> list[str]:
    return re.findall(r"<h2>(.*)</h2>", path.read_text(encoding="utf-8"))


def test_modes_of_the_pair_stand_side_by_side(bundled, tmp_path: Path):
    out = tmp_path / "page.html"
    result = run(
        "--pair",
        "arithmetic",
        "--modes",
        "plain,topk@4:k=3,topk+typical",
        "--max-new-tokens",
        "12",
        "--out",
        str(out),
        PROMPT,
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == f"written: {out}\n"
    assert headings(out) == ["plain", "topk@4:k=3", "topk+typical"]
    page = out.read_text(encoding="utf-8")
    assert "Ada has 5 apples." in page
    assert "q, by the draft" in page


def test_models_of_one_s_own_continue_a_prompt(tiny_pair_folder, tmp_path: Path):
    models = ["--model", str(tiny_pair_folder / "target"), "--assistant", str(tiny_pair_folder / "draft")]
    head = f"judge={pairs.hub_cards() / 'arithmetic-judge'}"
    out = tmp_path / "page.html"
    result = run(*models, "--max-new-tokens", "8", "--sample", "--seed", "3", "--out", str(out), PROMPT)
    assert result.exit_code == 0, result.output
    assert headings(out) == ["lossless", "min_p"]
    refused = run(*models, "--head", head, "--modes", "judge", "--overwrite", "--out", str(out), PROMPT)
    assert refused.exit_code == 2
    assert "judge" in refused.stderr


def test_the_page_of_the_default_problem_has_a_title_and_says_whether_answers_are_right(tmp_path: Path):
    out = tmp_path / "page.html"
    result = run("--pair", "arithmetic", "--modes", "lossless,dropmatch", "--seed", "0", "--out", str(out))
    assert result.exit_code == 0, result.output
    page = out.read_text(encoding="utf-8")
    assert re.findall(r"<h1>(.*)</h1>", page) == ["What became of every token"]
    assert ANSWER.findall(page) == ["right", "right"]


def test_the_page_of_a_wrong_answer_says_so(bundled, tmp_path: Path):
    out = tmp_path / "page.html"
    result = run("--pair", "arithmetic", "--max-new-tokens", "8", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert ANSWER.findall(out.read_text(encoding="utf-8")) == ["wrong", "wrong"]


def test_a_lossy_rule_stands_beside_the_lossless_one_and_keeps_tokens_of_its_own(tmp_path: Path):
    out = tmp_path / "page.html"
    result = run("--pair", "arithmetic", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert headings(out) == ["lossless", "min_p"]
    lossless, lossy = out.read_text(encoding="utf-8").split("<h2>")[1:]
    assert "kept only by min_p" not in lossless
    assert "kept only by min_p" in lossy


def test_a_file_is_replaced_only_if_that_is_said(bundled, tmp_path: Path):
    out = tmp_path / "page.html"
    out.write_text("mine")
    refused = run("--pair", "arithmetic", "--max-new-tokens", "4", "--out", str(out))
    assert refused.exit_code == 2
    assert "is there; choose another, or add `--overwrite`" in refused.stderr
    assert out.read_text() == "mine"
    result = run("--pair", "arithmetic", "--max-new-tokens", "4", "--overwrite", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert len(headings(out)) == 2


@pytest.mark.parametrize("given", [
    ["--assistant", "eagle3"],
    ["--assistant", "dflash"],
    ["--prompt-lookup", "3"],
    ["--assistant", "draft", "--prompt-lookup", "3"],
], ids=" ".join)  # fmt: skip
def test_every_drafter_can_be_named(tmp_path: Path, given):
    out = tmp_path / "page.html"
    result = run(
        "--pair", "arithmetic", *given, "--modes", "plain,lossless", "--max-new-tokens", "8", "--out", str(out)
    )
    assert result.exit_code == 0, result.output
    assert headings(out) == ["plain", "lossless"]
