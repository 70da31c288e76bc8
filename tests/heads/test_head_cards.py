"""Model cards, read back as the Hub would; what they show is compared with the heads of hub_cards."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from hf_lossy_assist import JudgeHead, pairs
from hf_lossy_assist.heads import Head, ModelIdentity


def card_of(head: Head, folder: Path, **changes) -> ModelCard:
    """Return the card of a head whose configuration was changed."""
    head.config = dataclasses.replace(head.config, **changes)
    head.save_pretrained(folder)
    return ModelCard.load(folder / "README.md")


def on_hub(identity: ModelIdentity, name: str) -> ModelIdentity:
    return dataclasses.replace(identity, name=name, revision="0123456789abcdef")


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
    assert "| on validation data | |" in card.text


def test_bare_head_has_a_card(judge: JudgeHead, tmp_path: Path):
    card = card_of(judge, tmp_path, thresholds=(), metrics={}, provenance={})
    assert card.data.base_model is None
    assert not any(word in card.content for word in ("base_model", "https://huggingface.co/", "roc.png"))
    assert card.data.eval_results is None
    assert re.findall(r"^#+ (.*)", card.text, re.MULTILINE) == [
        "Judge head for LlamaForCausalLM with LlamaForCausalLM: arithmetic",
        "Use",
    ]
    assert not re.search(r"{{|{%|\n\n\n", card.content)
    assert re.search(r"[^\n]\n\Z", card.content)
    ast.parse(snippet(card))


@pytest.mark.parametrize(("kind", "task"), [("judge", "arithmetic"), ("verifier", "another")])
def test_the_example_in_the_card_runs(
    kind: str, task: str, pair: pairs.Pair, request: pytest.FixtureRequest, tmp_path: Path
):
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
    exec(snippet(card).replace("your-org/your-repository", str(tmp_path)), names)
    assert names["ids"].shape[1] > names["inputs"]["input_ids"].shape[1]
