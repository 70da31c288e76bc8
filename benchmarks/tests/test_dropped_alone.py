"""``benchmarks.dropped_alone``: the target's head reads what is left of its input."""

from __future__ import annotations

import torch

from benchmarks.dropped_alone import app, drop
from benchmarks.tests.running import run
from hf_lossy_assist.evaluation.answers import load_answers
from hf_lossy_assist.evaluation.modes import Models
from tests.tiny_models import prompt, tiny


@torch.inference_mode()
def test_the_head_reads_scaled_inputs_of_which_a_share_is_missing():
    model, ids = tiny(), prompt()
    head, states = model.get_output_embeddings(), model.model(ids).last_hidden_state
    read = []
    head.register_forward_pre_hook(lambda head, inputs: read.append(inputs[0]))
    drop(Models(model), 0.25, number=1)
    head.register_forward_pre_hook(lambda head, inputs: read.append(inputs[0]))
    for _ in range(40):
        model(ids)
    before, after = (torch.stack(read[i::2]) for i in (0, 1))
    left = after != 0
    assert torch.equal(before, states.expand_as(before))
    torch.testing.assert_close(after[left], (before / 0.75)[left])
    # four standard deviations, of 40 calls: a chance below 1 in 10,000
    assert abs(left.double().mean() - 0.75) < 4 * (0.25 * 0.75 / left.numel()) ** 0.5
    assert not torch.equal(left[0], left[1])


def test_a_number_is_a_head_and_no_dropout_is_the_target(tmp_path):
    def texts(dropout, number):
        out = tmp_path / f"{dropout}-{number}"
        run(
            app, "--dropout", dropout, "--number", number, "evaluate", "--pair", "arithmetic", "--limit", 3,
            "--modes", "plain", "--max-new-tokens", 30, "--out", out,
        )  # fmt: skip
        return [one.text for one in load_answers(out)[1]]

    assert texts(0.0, 1) == texts(0.0, 2)
    assert texts(0.9, 1) != texts(0.9, 2)
