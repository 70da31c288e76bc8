"""Settings of min-p that can't work are refused by name, and τ = 1 is the argmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.call.config import LossyConfig
from hf_lossy_assist.core.messages import Verification

parse = LossyConfig.from_fields


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tau": 1.5}, r"`tau` of the rule 'min_p' has to be a number >= 0 and <= 1, but is 1\.5"),
        ({"tau": -0.1}, r"`tau` of the rule 'min_p' .* but is -0\.1"),
        ({"tau": "0.5"}, r"`tau` of the rule 'min_p' .* but is '0\.5'"),
        ({"top_n": 0}, r"`top_n` of the rule 'min_p' has to be an int >= 1, but is 0"),
        ({"top_n": 2.0}, r"`top_n` of the rule 'min_p' has to be an int >= 1, but is 2\.0"),
        ({"topn": 2}, r"`lossy_config` key 'topn' is unknown to the rule 'min_p'.*did you mean 'top_n'"),
    ],
)
def test_bad_settings(config: dict[str, Any], message: str):
    with pytest.raises(LossyValueError, match=message):
        parse("min_p", config)


def test_of_tied_tokens_the_whole_share_keeps_the_argmax_alone():
    v = Verification(torch.tensor([[0], [1], [2]]), torch.tensor([2.0, 2.0, 1.0]).expand(3, 2, -1))
    strict, loose = REGISTRY["min_p"](tau=1.0), REGISTRY["min_p"](tau=0.9)
    assert strict.keep(v)[:, 0].tolist() == [True, False, False]
    assert loose.keep(v)[:, 0].tolist() == [True, True, False]
    assert strict.is_lossless(do_sample=False)
    assert not strict.is_lossless(do_sample=True)
