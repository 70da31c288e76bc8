"""``lossy-assist dropout``, and the commands that use what it writes."""

from __future__ import annotations

import torch
from transformers import GenerationConfig
from typer.testing import CliRunner

from hf_lossy_assist.cli import app
from hf_lossy_assist.cli.dropout import head_inputs
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.models.lm_head_hook import AGREEMENT, DROPOUTS
from tests.agreement import agreement


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_largest_that_suits_all_prompts_is_stored_and_used(pair, tmp_path):
    run("dropout", "--pair", "arithmetic", "--count", "2", "--num-paths", "3", "--gamma", "7", "--out", str(tmp_path))
    config = GenerationConfig.from_pretrained(tmp_path)
    assert (config.lossy_mode, config.lossy_config["num_paths"], config.num_assistant_tokens) == ("dropmatch", 3, 7)
    found = config.lossy_config["dropout"]

    prompts = [pair.task.encode(example, pair.tokenizer) for example in pair.task.examples("test", 2)]
    with torch.no_grad():
        states = [pair.target.model(torch.tensor([ids])).last_hidden_state[0, -64:] for ids in prompts]
        torch.testing.assert_close(head_inputs(pair.target, prompts), states, atol=1e-4, rtol=1e-4)
        head, all_of_them = pair.target.get_output_embeddings(), torch.cat(states)
        larger = DROPOUTS[DROPOUTS.index(found) + 1 :][:1]
        assert agreement(head, all_of_them, 3, found) >= AGREEMENT
        assert all(agreement(head, all_of_them, 3, dropout) < AGREEMENT for dropout in larger)

    settings = {"dropout": found, "num_paths": 3}
    (mode,) = parse_modes(str(tmp_path), 5)
    assert mode.config == {"lossy_mode": "dropmatch", "lossy_config": settings, "num_assistant_tokens": 7}
    given = ("generate", "--pair", "arithmetic", "--max-new-tokens", "12", "--stats")
    assert "dropmatch" in run(*given, "--mode", str(tmp_path))
