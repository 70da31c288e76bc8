"""Reinforcement learning with TRL, whose roll-outs are drafted: the same distribution, in fewer calls of the model.

pip install trl; python examples/13_rollouts.py
"""

import copy
import sys
import tempfile

import torch
from datasets import Dataset

import hf_lossy_assist
from hf_lossy_assist import pairs

STEPS = 2


def train(target, draft, tokenizer, task, steps, out):
    """Train ``target`` on right answers by GRPO, and return what its roll-outs kept of the draft's tokens."""
    from trl import GRPOConfig, GRPOTrainer

    examples = task.examples("train", 8)
    data = Dataset.from_dict({"prompt": [x.prompt for x in examples], "number": range(len(examples))})
    seen = []

    def right(completions, number, **_):
        stats = hf_lossy_assist.last_stats(target)
        seen.append((stats.accepted, stats.rounds, stats.lossless))
        return [float(task.correct(examples[i], text)) for i, text in zip(number, completions, strict=True)]

    # Every call of generate() on the target drafts from now on. No `lossy_mode` of a call or of a GenerationConfig can
    # make it lossy: a lossy rule would train on texts that the model would not have written.
    hf_lossy_assist.enable(
        target, assistant_model=draft, lossy_mode="lossless", lossy_config={"require_lossless": True}
    )
    config = GRPOConfig(
        out,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=160,
        max_steps=steps,
        report_to="none",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(target, right, config, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    hf_lossy_assist.disable(target)
    return seen


if __name__ == "__main__":
    try:
        import trl  # noqa: F401
    except ImportError as error:
        sys.exit(str(error))
    pair = pairs.load("arithmetic")
    target = copy.deepcopy(pair.target)  # training changes it
    with tempfile.TemporaryDirectory() as out:
        seen = train(target, pair.draft, pair.tokenizer, pair.task, STEPS, out)
    for step, (accepted, rounds, lossless) in enumerate(seen):
        print(f"step {step}: {accepted / rounds:.2f} drafted tokens kept a round, lossless: {lossless}")
