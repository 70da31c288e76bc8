"""Of min-p, τ = 1 is the argmax."""

from __future__ import annotations

import torch

from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.core.messages import Verification


def test_of_tied_tokens_the_whole_share_keeps_the_argmax_alone():
    v = Verification(torch.tensor([[0], [1], [2]]), torch.tensor([2.0, 2.0, 1.0]).expand(3, 2, -1))
    strict, loose = REGISTRY["min_p"](tau=1.0), REGISTRY["min_p"](tau=0.9)
    assert strict.keep(v)[:, 0].tolist() == [True, False, False]
    assert loose.keep(v)[:, 0].tolist() == [True, True, False]
