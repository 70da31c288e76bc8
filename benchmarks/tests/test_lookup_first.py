"""Replayed rounds are the loop's own."""

from __future__ import annotations

import json

import torch
from typer.testing import CliRunner

from benchmarks.lookup_first import KINDS, app, drafters, replayed, summary
from hf_lossy_assist import enabled
from hf_lossy_assist.cli.models import LoadedModels
from hf_lossy_assist.drafting.lookup_first import price_of
from hf_lossy_assist.evaluation.modes import Models


def test_replayed_rounds_are_those_of_the_loop(models: Models, tokenizer):
    loaded = LoadedModels(models.target, models.draft, tokenizer)
    keywords = [{}, {"prompt_lookup_num_tokens": 4}, {"prompt_lookup_num_tokens": 4}]
    price, seen = price_of(models.draft, models.target), 0
    for prompt in ([1, 5, 9], [1, 7, 3, 3, 8], [1, 9, 4, 9, 4, 9]):
        ids = torch.tensor([prompt])
        made = drafters(loaded, 3, 4, price)
        for kind, drafter, more in zip(KINDS, made, keywords, strict=True):
            draft = {} if kind == "look-up alone" else {"assistant_model": models.draft, "num_assistant_tokens": 3}
            with enabled(models.target):
                out = models.target.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=50, do_sample=False, lossy_mode="lossless",
                    return_dict_in_generate=True, **draft, **more,
                )  # fmt: skip
            stats, answer = out.lossy_stats, out.sequences[0, len(prompt) :].tolist()
            counts = [stats.rounds, stats.tokens, stats.draft_calls, stats.looked_up]
            assert replayed(drafter, prompt, answer) == counts
            seen += stats.looked_up
    assert seen > 10


def test_the_table_s_figures_are_those_of_sums():
    alone, lookup, first = [10, 40, 50, 0], [20, 40, 0, 0], [12, 40, 30, 30]
    rows = [{"category": name, "id": i, "price": 0.2, "counts": [alone, lookup, first]} for i, name in enumerate("aab")]
    (line, *_, whole) = summary(rows)
    # 40 tokens in 10 calls and 50 drafts' forwards cost 20; in 12 and 30 they cost 18.
    assert line[:2] + line[2:] == ["a", "2", "4.00", "2.00", "3.33", "5.00", "2.50", "1.11"]
    assert whole[:2] == ["all", "3"]


def test_answers_and_counts_are_made_once(tmp_path):
    out, texts = tmp_path / "rows.jsonl", tmp_path / "texts.jsonl"
    command = ["--out", str(out), "--texts", str(texts), "--limit", "2", "--max-new-tokens", "16"]
    for _ in range(2):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert [len(x.read_text().splitlines()) for x in (out, texts)] == [2, 2]
    row = json.loads(out.read_text().splitlines()[0])
    assert row["category"] == "arithmetic"
    assert len(row["counts"]) == 3
