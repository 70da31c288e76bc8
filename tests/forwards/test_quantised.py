"""Quantised caches: the text that plain ``generate()`` writes on the same cache, token for token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import QuantizedCache, cache_utils
from transformers.cache_utils import Cache, QuantizedLayer

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.compat import forgettable, rollback
from tests.acceptors.fixtures import verifier_head
from tests.eagle3_heads import random_head
from tests.models import noisy_copy, padded, prompt, tiny
from tests.parity import assert_same_rows, assert_same_text

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}


class RoundedLayer(QuantizedLayer):
    """Rounds to one decimal, so that no other package is needed."""

    def _quantize(self, tensor, axis):
        return (10 * tensor).round()

    def _dequantize(self, qtensor):
        return qtensor / 10


class Rounded(QuantizedCache):
    def __init__(self, config, residual_length: int) -> None:
        layers = [RoundedLayer(residual_length=residual_length) for _ in range(config.num_hidden_layers)]
        Cache.__init__(self, layers=layers)


def of_backend(name: str, **settings: Any) -> Any:
    def make(config):
        try:
            return QuantizedCache(name, config, **settings)
        except (ImportError, ValueError):
            pytest.skip(f"no {name} here")

    return make


CACHES = {
    **{f"rounded {n}": lambda config, n=n: Rounded(config, n) for n in (1, 2, 7, 128)},
    "fp8": of_backend("fp8"),
    "hqq": of_backend("hqq", q_group_size=16, residual_length=8),
    "quanto": of_backend("quanto", q_group_size=16, residual_length=8),
}
TARGET = tiny("llama")
DRAFT = noisy_copy(TARGET, 0.01)


@pytest.mark.parametrize("cache", CACHES)
def test_turns_on_one_cache(cache: str):
    """Three in a row on the same cache, each with a new question: ours twice, then plain."""
    texts = []
    for turns in (({}, {}, {}), ({"assistant_model": DRAFT, "lossy_mode": "lossless"},) * 2 + ({},)):
        text, held, drafted = prompt(9), CACHES[cache](TARGET.config), 0
        for turn, extra in enumerate(turns):
            text = torch.cat([text, prompt(3 + turn, seed=turn)], dim=1)
            out = TARGET.generate(
                text, attention_mask=torch.ones_like(text), past_key_values=held, max_new_tokens=20, **GREEDY, **extra
            )
            text = out.sequences
            assert out.past_key_values is held
            assert held.get_seq_length() == text.shape[1] - 1
            drafted += out.lossy_stats.accepted if extra else 0
        texts.append(text)
        assert drafted or not turns[0] or cache in ("rounded 1", "rounded 2")
    assert texts[0].equal(texts[1])


@pytest.mark.parametrize("drafting", ["early exit", "lookup", "eagle", "sampled"])
def test_however_texts_are_drafted(drafting: str):
    target = tiny("llama")
    extra = {
        "early exit": {"assistant_early_exit": 1},
        "lookup": {"prompt_lookup_num_tokens": 3},
        "eagle": {"assistant_model": random_head()},
        "sampled": {"assistant_model": DRAFT, "do_sample": True, "top_k": 1},
    }[drafting]
    ids = prompt(5).repeat(1, 3)
    plain = target.generate(ids, past_key_values=Rounded(target.config, 7), max_new_tokens=24, **GREEDY)
    ours = target.generate(
        ids, past_key_values=Rounded(target.config, 7), max_new_tokens=24, **GREEDY | extra, lossy_mode="lossless"
    )
    assert_same_text(ours.sequences, plain)
    assert ours.lossy_stats.drafted


def test_batches_of_a_cache_that_generate_makes(monkeypatch):
    monkeypatch.setattr("transformers.generation.utils.QuantizedCache", lambda **kwargs: Rounded(TARGET.config, 7))
    monkeypatch.setattr("transformers.generation.utils.is_optimum_quanto_available", lambda: True, raising=False)
    settings = padded() | GREEDY | {"cache_implementation": "quantized", "max_new_tokens": 20}
    plain = TARGET.generate(**settings)
    ours = TARGET.generate(**settings, assistant_model=DRAFT, lossy_mode="lossless")
    assert_same_rows(ours.sequences, plain)
    assert ours.lossy_stats.accepted


def test_what_is_forgotten_leaves_no_trace():
    cache, ids = Rounded(TARGET.config, 9), prompt(12)
    logits = []
    with torch.no_grad():
        assert forgettable(cache) == 0
        TARGET(ids[:, :5], past_key_values=cache)
        assert forgettable(cache) == 8
        for part in (ids[:, 5:11], ids[:, 5:6], ids[:, 6:12]):
            logits.append(TARGET(part, past_key_values=cache).logits)
            if len(logits) == 1:
                rollback(cache, 6)
                assert cache.get_seq_length() == 5
    torch.testing.assert_close(logits[0][:, 1:], logits[2][:, :-1])
    assert forgettable(cache) == 1


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("sprinter", {"lossy_head": verifier_head(TARGET, DRAFT)}),
        ("lossless", {"lossy_config": {"tree": {"depth": 2}}}),
    ],
)
def test_what_can_t_be_had(mode: str, more: dict[str, Any]):
    calls = []
    handle = TARGET.register_forward_pre_hook(lambda *args: calls.append(args))
    with pytest.raises(LossyUnsupportedError, match="Rounded"):
        TARGET.generate(
            prompt(), past_key_values=Rounded(TARGET.config, 7), assistant_model=DRAFT, lossy_mode=mode, **more
        )
    handle.remove()
    assert not calls


def test_layers_that_quantise_at_once_are_known():
    """A new kind of quantised layer has to be looked at before it is trusted."""
    kinds = {name for name in vars(cache_utils) if name.endswith("QuantizedLayer")}
    known = {"QuantizedLayer", "QuantoQuantizedLayer", "HQQQuantizedLayer", "BaseQuantizedLayer", "Fp8QuantizedLayer"}
    assert kinds <= known
