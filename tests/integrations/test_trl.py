"""Roll-outs of TRL's trainers are drafted, and no lossy rule reaches them."""

from __future__ import annotations

import copy

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from hf_lossy_assist import LossyValueError, disable, enable, last_stats

GUARD = {"lossy_mode": "lossless", "lossy_config": {"require_lossless": True}}


def train(target, pair, out, **settings):
    """Return each roll-out's statistics, and the target's weights after two steps on texts with many digits."""
    seen = []

    def reward(completions, **_):
        seen.append(last_stats(target))
        return [float(sum(c.isdigit() for c in text)) for text in completions]

    data = Dataset.from_dict({"prompt": [x.prompt for x in pair.task.examples("train", 4)]})
    config = GRPOConfig(
        str(out), num_generations=4, per_device_train_batch_size=8, max_completion_length=24, max_steps=2,
        learning_rate=1e-3, report_to="none", save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True, seed=0,
        **settings,
    )  # fmt: skip
    GRPOTrainer(target, reward, config, train_dataset=data, processing_class=pair.tokenizer).train()
    return seen, target.state_dict()


def test_roll_outs_are_drafted_and_lossless(pair, tmp_path):
    """A configuration that asks for a lossy rule does not get it, and the model learns from what was drawn."""
    target = copy.deepcopy(pair.target)
    enable(target, assistant_model=pair.draft, **GUARD)
    seen, weights = train(target, pair, tmp_path, generation_kwargs={"lossy_mode": "min_p"})
    disable(target)
    assert len(seen) == 2
    for stats in seen:
        assert stats.lossless
        assert len(stats.rows) == 8
        assert stats.accepted > stats.rounds > 0
    assert any(not torch.equal(own, pair.target.state_dict()[name]) for name, own in weights.items())


@pytest.mark.parametrize("do_sample", [False, True])
def test_no_call_of_a_guarded_model_is_lossy(pair, do_sample):
    target = copy.deepcopy(pair.target)
    inputs = pair.tokenizer("Question: Tom has 3.", return_tensors="pt")
    fields = {"lossy_mode": "min_p", "max_new_tokens": 4, "do_sample": do_sample}
    enable(target, assistant_model=pair.draft, **GUARD)
    for config in ({}, {"lossy_config": {"tau": 0.3}}):
        with pytest.raises(LossyValueError, match="require_lossless"):
            target.generate(**inputs, **fields, **config)
    target.generate(**inputs, **fields, lossy_config={"require_lossless": False})
    assert not last_stats(target).lossless
    disable(target)
