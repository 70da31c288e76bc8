"""What is recorded of each token; that it is plain generation's: see ``test_tree_loop`` and ``test_recurrent``."""

from __future__ import annotations

import torch
from transformers import GenerationConfig

from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.core.messages import TargetOutput
from hf_lossy_assist.core.statistics import LossyStats
from hf_lossy_assist.decoding.outputs import OutputRecorder, side_by_side


def test_nothing_is_kept_that_nobody_asked_for():
    scores, logits = torch.randn(2, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    recorder = OutputRecorder(GenerationConfig(return_dict_in_generate=True, output_logits=True), 1, 5)
    recorder.record([0], scores, TargetOutput(None, logits), [3], 2)
    recorder.cut(0, 2)
    out = recorder.finish(torch.zeros(1, 1), LossyStats(), {CACHE: "cache"})
    assert torch.cat(out.logits).equal(logits[0, :2])
    assert (out.scores, out.hidden_states, out.attentions, getattr(out, CACHE)) == (None, None, None, "cache")
    assert recorder.scores_upto(2) is None
    no_dict = OutputRecorder(GenerationConfig(output_scores=True))
    assert not no_dict.as_dict
    assert not no_dict.wanted


def test_states_with_more_dimensions_keep_their_rows_together():
    """Some models carry several streams of states, in a dimension before the rows."""
    short, long = ([(torch.full((4, 1, 1, 2), x),)] * n for x, n in ((3.0, 1), (1.0, 2)))
    together = side_by_side([short, long], "hidden_states")
    assert [entry[0].shape for entry in together] == [(4, 2, 1, 2)] * 2
    assert [entry[0][2, :, 0, 0].tolist() for entry in together] == [[3, 1], [0, 1]]
