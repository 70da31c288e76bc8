"""Model cards, read back as the Hub and its visitors would."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from hf_lossy_assist import JudgeHead, VerifierHead, pairs
from hf_lossy_assist.heads import Head, ModelIdentity
from hf_lossy_assist.heads.repository import PLACEHOLDER_ID

RESULTS = (
    {"mode": "lossless", "accuracy": 0.951, "mean accepted": 6.21},
    {"mode": "judge", "accuracy": 0.944, "mean accepted": 12.5},
)


def card_of(head: Head, folder: Path, **changes) -> ModelCard:
    """Return the card of a head whose configuration was changed."""
    head.config = dataclasses.replace(head.config, **changes)
    head.save_pretrained(folder)
    return ModelCard.load(folder / "README.md")


def on_hub(identity: ModelIdentity, name: str) -> ModelIdentity:
    return dataclasses.replace(identity, name=name, revision="0123456789abcdef")


def tables(text: str) -> dict[str, list[list[str]]]:
    """Return the last table below each heading, row by row, without the ruler."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not all(set(cell) == {"-"} for cell in cells):
                found.setdefault(heading, []).append(cells)
    return found


def snippet(card: ModelCard) -> str:
    return re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1]


def test_metadata(judge: JudgeHead, tmp_path: Path):
    config = judge.config
    card = card_of(
        judge,
        tmp_path,
        target=on_hub(config.target, "org/large"),
        draft=on_hub(config.draft, "org/small"),
        provenance={"datasets": ["openai/gsm8k"], "license": "apache-2.0"},
    )
    data = card.data
    assert data.library_name == "hf_lossy_assist"
    assert data.base_model == ["org/large", "org/small"]
    assert data.pipeline_tag == "text-generation"
    assert {"hf_lossy_assist", "speculative-decoding", "judge-head", "arithmetic"} <= set(data.tags)
    assert (data.datasets, data.license, data.metrics) == (["openai/gsm8k"], "apache-2.0", ["roc_auc"])
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("roc_auc", 0.9375, "validation")
    assert "[org/large](https://huggingface.co/org/large) at `0123456789ab`" in card.text
    assert 'from_pretrained("org/large")' in snippet(card)


def test_judge_says_what_it_is(judge: JudgeHead, tmp_path: Path):
    (tmp_path / "roc.png").write_bytes(b"")
    figures = {"auc": 0.98125, "recall": 0.913, "tokens": 12345, "C": 0.001}
    card = card_of(judge, tmp_path, metrics=figures, results=RESULTS)
    found = tables(card.text)
    facts = dict(found["Judge head for LlamaForCausalLM with LlamaForCausalLM: arithmetic"])
    assert facts["Target"] == "LlamaForCausalLM (LlamaForCausalLM)"
    assert facts["Reads"] == "the final hidden state that has read the drafted token, of the target"
    assert facts["Size"] == "one weight of 32 numbers and one bias, 132 bytes"
    assert facts["Threshold"] == "0.125"
    assert dict(found["Figures"]) == {
        "on validation data": "",
        "ROC-AUC": "0.9812",
        "Tokens that matter, found": "91.3%",
        "`tokens`": "12,345",
        "`C`": "0.001",
    }
    assert found["Thresholds"] == [
        ["threshold", "recall", "skipped"],
        ["0.5", "0.8", "0.9"],
        ["0.125", "0.9", "0.7"],
        ["0.01", "0.99", "0.2"],
    ]
    assert found["Accuracy and speed"] == [
        ["mode", "accuracy", "mean accepted"],
        ["lossless", "0.951", "6.21"],
        ["judge", "0.944", "12.5"],
    ]
    assert "![ROC curve](roc.png)" in card.text
    assert 'lossy_mode="judge"' in snippet(card)
    assert f'lossy_head="{PLACEHOLDER_ID}"' in snippet(card)
    assert "lossy-assist train judge --data D --out H" in card.text
    assert "With torch 2.13.0." in card.text


def test_verifier_says_what_it_is(verifier: VerifierHead, tmp_path: Path):
    card = card_of(verifier, tmp_path)
    assert "`q(x) / p(x) <= 1.2`" in card.text
    assert 'lossy_mode="sprinter"' in snippet(card)
    facts = dict(tables(card.text)["Verifier head for LlamaForCausalLM with LlamaForCausalLM: arithmetic"])
    assert facts["Reads"] == "the final hidden state that predicted the token, of the draft"
    assert dict(tables(card.text)["Figures"])["Other tokens, committed (FPR)"] == "20.0%"
    assert tables(card.text)["Thresholds"][1] == ["0.5", "0.9", "0.2"]
    assert "Measured on validation data. TPR" in card.text
    assert "Measured out of fold. TPR" in card_of(verifier, tmp_path, metrics={"auc": 0.9, "folds": 5}).text


def test_bare_head_has_a_card(judge: JudgeHead, tmp_path: Path):
    card = card_of(judge, tmp_path, thresholds=(), metrics={}, provenance={})
    assert card.data.base_model is None
    assert not any(word in card.content for word in ("base_model", "https://huggingface.co/", "roc.png"))
    assert card.data.eval_results is None
    assert set(tables(card.text)) == {"Judge head for LlamaForCausalLM with LlamaForCausalLM: arithmetic"}
    assert "How it was made" not in card.text


@pytest.mark.parametrize("kind", ["judge", "verifier"])
@pytest.mark.parametrize("changes", [{}, {"results": RESULTS}, {"thresholds": (), "metrics": {}, "provenance": {}}])
def test_markdown_is_in_order(kind: str, changes: dict, request: pytest.FixtureRequest, tmp_path: Path):
    card = card_of(request.getfixturevalue(kind), tmp_path, **changes)
    assert "{{" not in card.content
    assert "{%" not in card.content
    assert "\n\n\n" not in card.content
    assert card.content.endswith("\n")
    assert not card.content.endswith("\n\n")
    ast.parse(snippet(card))
    # A table or heading needs an empty line before it.
    for before, line in zip(card.text.splitlines(), card.text.splitlines()[1:], strict=False):
        if line.startswith(("#", "|", "```python")) and not before.startswith("|"):
            assert before == "", line


@pytest.mark.parametrize(("kind", "task"), [("judge", "arithmetic"), ("verifier", "another")])
def test_the_example_in_the_card_runs(kind: str, task: str, request: pytest.FixtureRequest, tmp_path: Path):
    pair = pairs.load("arithmetic")
    template = request.getfixturevalue(kind)
    config = dataclasses.replace(
        template.config,
        target=ModelIdentity.of(pair.target),
        draft=ModelIdentity.of(pair.draft),
        provenance={"pair": "arithmetic"},
        task=task,
    )
    head = type(template)(config, torch.zeros(config.width), 0.0)
    card = card_of(head, tmp_path)
    assert ("pair.task.examples" in snippet(card)) == (task == "arithmetic")
    names: dict = {}
    exec(snippet(card).replace(PLACEHOLDER_ID, str(tmp_path)), names)
    assert names["ids"].shape[1] > names["inputs"]["input_ids"].shape[1]
