"""DFlash heads: their files in three formats, and transformers' own implementation as an oracle."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from hf_lossy_assist import DFlash, LossyUnsupportedError, LossyValueError
from hf_lossy_assist.core.messages import Commit
from hf_lossy_assist.generation.drafters.dflash import BlockDrafter, DFlashConfig, DFlashRunner
from hf_lossy_assist.generation.drafters.state_heads import LayerStates
from tests.dflash_heads import BLOCK, CONVENTIONS, muse, published_values, random_dflash, trained_pair, write_published
from tests.eagle3_heads import layer
from tests.generation.drafters.uncached import dflash_logits
from tests.tiny_models import VOCAB, prompt, tiny

LARGEST = 1 << 24


def logits(head: DFlash, text: torch.Tensor | None = None) -> torch.Tensor:
    """Return the head's own logits of a block after a text, by the code that ships."""
    target, text = tiny("llama"), prompt(9) if text is None else text
    runner, states = DFlashRunner(head, target, None), LayerStates(target, head.config.layers_of(target))
    with torch.no_grad(), states.watched():
        target(text[:, :-1])
        commit = Commit(text, text.shape[1] - 1, 0, (0,), (1,), (0,), (0,), None)
        runner.read_states(commit, states.pop())
        return runner.forward(text[:, -1:], head.longest).logits[0]


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", CONVENTIONS)
def test_checkpoints_of_the_package_dflash_are_read(kind, nested, tmp_path):
    head = random_dflash(**CONVENTIONS[kind])
    own = {x: getattr(head.config, x) for x in ("is_causal", "input_embedding_scale", "output_multiplier")}
    own |= {"final_logit_softcapping": head.config.final_logit_softcapping}
    values = published_values(head, nested)
    values |= own if not nested else {"dflash_config": values["dflash_config"] | own}
    loaded = DFlash.from_pretrained(write_published(head, tmp_path, values, nested))
    assert loaded.config.layers_of(tiny("llama")) == head.config.target_layers
    torch.testing.assert_close(logits(loaded), logits(head), atol=0, rtol=0)
    torch.testing.assert_close(
        logits(loaded), dflash_logits(tiny("llama"), head, prompt(9)[0], BLOCK - 1), atol=2e-4, rtol=2e-4
    )


@pytest.mark.parametrize("drafted", [None, 24])
@pytest.mark.parametrize("kind", CONVENTIONS)
def test_what_is_saved_is_loaded(kind, drafted, tmp_path):
    head = random_dflash(drafted=drafted, **CONVENTIONS[kind])
    head.save_pretrained(tmp_path)
    loaded = DFlash.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(loaded), logits(head), atol=0, rtol=0)
    assert loaded.state_dict().keys() == head.state_dict().keys()
    assert "DFlash.from_pretrained" in (tmp_path / "README.md").read_text()


def test_checkpoints_of_speculators_may_have_a_llama_s_configuration_and_the_target_s_weights(tmp_path):
    head = random_dflash()
    head.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    llama = layer("llama", num_hidden_layers=2).to_diff_dict()
    (tmp_path / "config.json").write_text(json.dumps(values | {"transformer_layer_config": llama}))
    copies = {"embed_tokens.weight": torch.zeros(64, 32), "lm_head.weight": torch.zeros(64, 32)}
    copies |= {"verifier_norm.weight": torch.zeros(32), "t2d": torch.ones(64, dtype=torch.bool)}
    save_file(load_file(tmp_path / "model.safetensors") | copies, tmp_path / "model.safetensors")
    torch.testing.assert_close(logits(DFlash.from_pretrained(tmp_path)), logits(head), atol=0, rtol=0)


def test_drafts_are_those_of_transformers_own_generator(tmp_path, monkeypatch, watch_drafts):
    """Up to the sliding window: transformers' is one token wider than the package dflash's in a block's first round."""
    pytest.importorskip("transformers.models.muse_glimmer_assistant", reason="no DFlash model in this version")
    from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(**tiny("llama").config.to_dict() | {"num_hidden_layers": 3})).eval()
    model = muse()
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": VOCAB} | values))
    stock, ours = {}, {}
    get = DFlashTokenCandidateGenerator.get_candidates

    def watch_stock(self, input_ids, *args, **kwargs):
        found = get(self, input_ids, *args, **kwargs)
        if found[1] is not None:
            stock[input_ids.shape[1]] = found[1][0]
        return found

    def watch_ours(draft, _, ids, *more):
        if len(draft):
            ours[ids.shape[1]] = draft.logits[0]

    monkeypatch.setattr(DFlashTokenCandidateGenerator, "get_candidates", watch_stock)
    watch_drafts(BlockDrafter, watch_ours)
    call = {"inputs": prompt(), "do_sample": False, "max_new_tokens": 24, "eos_token_id": None}
    texts = [
        target.generate(**call, assistant_model=model, speculation_type="dflash"),
        target.generate(
            **call, assistant_model=DFlash.from_pretrained(tmp_path), lossy_mode=["lossless", "fsd"],
            lossy_config={"fsd": {"threshold": 1e-9}}, num_assistant_tokens=BLOCK - 1,
        ),
    ]  # fmt: skip
    assert torch.equal(*texts)
    assert len(ours) > 4
    assert ours.keys() == stock.keys() - {max(stock)} or ours.keys() == stock.keys()
    for length, own in ours.items():  # at the end, a draft of ours is shorter
        torch.testing.assert_close(own, stock[length][: len(own)], atol=2e-4, rtol=2e-4)


REFUSED = {
    "another model": ({"architectures": ["GPT2LMHeadModel"]}, LossyValueError, "is no DFlash head"),
    "nothing": ({"architectures": None}, LossyValueError, "is no DFlash head"),
    "DFlash 2": ({"architectures": ["DFlash2DraftModel"]}, LossyUnsupportedError, "DFlash2DraftModel"),
    "Domino": ({"projector_type": "domino"}, LossyUnsupportedError, "projector_type"),
    "drafts at the anchor": ({"sample_from_anchor": True}, LossyUnsupportedError, "sample_from_anchor"),
    "no mask token": ({"dflash_config": {"target_layer_ids": [0], "block_size": 4}}, LossyValueError, "mask_token_id"),
    "a block of one": ({"dflash_config": {"block_size": 1}}, LossyValueError, "block_size"),
    "layers": ({"dflash_config": {"target_layer_ids": "1"}}, LossyValueError, "target_layer_ids"),
    "sizes": ({"intermediate_size": LARGEST}, LossyValueError, "has other weights than"),
    "no object": ({"dflash_config": 3}, LossyValueError, "dflash_config"),
}


@pytest.mark.parametrize(("values", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_configurations_that_are_none_of_a_head_or_of_another_kind(values, kind, said, tmp_path):
    with pytest.raises(kind, match=said):
        DFlash.from_pretrained(write_published(random_dflash(), tmp_path, values))


def test_only_safetensors_are_read(tmp_path):
    path = write_published(random_dflash(), tmp_path) / "model.safetensors"
    torch.save(load_file(path), tmp_path / "pytorch_model.bin")
    path.unlink()
    with pytest.raises(LossyValueError, match="safetensors"):
        DFlash.from_pretrained(tmp_path)


def test_a_mask_token_that_the_target_lacks_is_refused():
    with pytest.raises(LossyValueError, match=r"`mask_token_id` 64.* 64 tokens"):
        random_dflash(mask_token_id=64).check(tiny("llama"))


def test_a_target_whose_embeddings_are_no_table_is_refused():
    """Those of some models of speech add up several tables."""
    target = tiny("llama")
    target.set_input_embeddings(nn.Sequential(target.get_input_embeddings()))
    with pytest.raises(LossyValueError, match=r"these are no single table, .* embeddings of its own"):
        random_dflash().check(target)


def test_configurations_of_models_are_none_of_heads():
    assert not DFlashConfig.describes({"architectures": ["Qwen3ForCausalLM"]})
    assert DFlashConfig.describes(trained_pair()[1].config.to_dict())
