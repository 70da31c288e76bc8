"""A target's own MTP layer: what it drafts, and from which checkpoints it is read."""

from __future__ import annotations

import functools
import gc
import shutil
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig
from transformers.generation.candidate_generator import MTPCandidateGenerator

from hf_lossy_assist import LossyUnsupportedError, LossyValueError, last_stats
from hf_lossy_assist.generation.drafters import mtp
from hf_lossy_assist.models import recurrent
from tests.acceptors.fixtures import assert_second_token_has_the_law
from tests.generation.drafters.uncached import Reference
from tests.mtp_checkpoints import FAMILIES, layer, loaded, saved, trained_pair, write
from tests.multimodal_models import asked
from tests.nightly import nightly, spread
from tests.parity import assert_lossless
from tests.tiny_models import VOCAB, prompt, prompts, tiny

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 30}
OURS = {"use_mtp": True, "lossy_mode": "lossless"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return functools.cache(lambda name: write(name, tmp_path_factory.mktemp(name)))


def cut(lengths: tuple[int, ...] = (7, 3, 5, 6)) -> dict[str, torch.Tensor]:
    """Return prompts of which the first tokens are padding."""
    ids, mask = prompts(len(lengths)), torch.ones(len(lengths), 7, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, : 7 - length], mask[row, : 7 - length] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(
    ("name", "replay"),
    nightly([("qwen3_next", 32), ("qwen3_5", 32), ("qwen3_5", 1), ("qwen3_5_moe", 32), ("mimo", 32)],
            but=[("qwen3_5", 32), ("qwen3_5", 1), ("mimo", 32)]),
)  # fmt: skip
def test_every_draft_is_what_the_checkpoint_s_tensors_say(name, replay, checkpoint, drafts, monkeypatch):
    """Single texts and padded rows. Recurrent targets read kept tokens with the next draft, or before it."""
    monkeypatch.setattr(recurrent, "LONGEST_REPLAY", replay)
    target, weights = loaded(checkpoint(name)), load_file(checkpoint(name) / "model.safetensors")
    reference = Reference(weights, FAMILIES[name], target.config)
    # The rule reads q and keeps any token, so states come after drafts that were kept and after others.
    rule = {"lossy_mode": ["lossless", "fsd"], "lossy_config": {"fsd": {"threshold": 0.3}}, "num_assistant_tokens": 3}
    in_turns = {"stopping_criteria": [lambda ids, scores: torch.zeros(len(ids), dtype=torch.bool)]}
    for inputs in ({"input_ids": prompt(12)}, cut((7, 4)), cut((7, 4)) | in_turns):
        target.generate(**inputs, use_mtp=True, **rule, do_sample=False, max_new_tokens=16, eos_token_id=None)
    assert len(drafts) > 10
    assert 3 in {len(tokens) for _, tokens, _ in drafts}
    for text, tokens, logits in drafts:
        torch.testing.assert_close(logits, reference.logits(target, text, tokens), atol=2e-4, rtol=2e-4)
        assert tokens.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
def test_drafts_are_those_of_transformers_own_mtp(name, checkpoint, drafts, monkeypatch):
    target, theirs, ask = loaded(checkpoint(name)), {}, MTPCandidateGenerator.get_candidates
    if getattr(target.config.get_mtp_config(), "first_k_dense_replace", 0):
        pytest.skip("this version gives the MTP layer no experts where the first layer has none")
    target._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\."]  # of a model with so many layers

    def noted(self, input_ids, *args, **kwargs):
        candidates, logits = ask(self, input_ids, *args, **kwargs)
        if logits is not None:
            theirs[input_ids.shape[1]] = candidates[0, input_ids.shape[1] :].tolist(), logits[0]
        return candidates, logits

    monkeypatch.setattr(MTPCandidateGenerator, "get_candidates", noted)
    stock = target.generate(prompt(12), use_mtp=True, do_sample=False, max_new_tokens=24, eos_token_id=None)
    ours = target.generate(
        prompt(12), use_mtp=True, lossy_mode=["fsd", "lossless"], lossy_config={"fsd": {"threshold": 1e-9}},
        num_assistant_tokens=1, do_sample=False, max_new_tokens=24, eos_token_id=None,
    )  # fmt: skip
    assert ours.equal(stock)
    assert len(drafts) > 10
    for text, tokens, logits in drafts:
        expected, their_logits = theirs[len(text)]
        assert tokens.tolist() == expected
        torch.testing.assert_close(logits, their_logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["mimo", "qwen3_5"])
def test_sampling_has_the_target_s_law(name):
    """Of 600 or 100 texts: p > 1e-5 catches a law that is off by 0.12 or 0.29 anywhere."""
    assert_second_token_has_the_law(trained_pair(name)[0], {"use_mtp": True}, 0.7, rows=600 if name == "mimo" else 100)


@spread(name=["mimo", "deepseek_v3", "glm4_moe"], tree=[{"depth": 3, "top_k": 2, "nodes": 6}, None])
def test_trees_and_static_caches(name, tree):
    drafting = {"use_mtp": True, "num_assistant_tokens": 3, "lossy_config": {"tree": tree} if tree else None}
    call = GREEDY | {"input_ids": prompts(), "eos_token_id": None, "cache_implementation": None if tree else "static"}
    _, ours = assert_lossless(trained_pair(name)[0], drafting, **call)
    assert ours.lossy_stats.accepted > 10


def test_a_layer_is_read_once_and_freed_with_its_target(tmp_path, monkeypatch):
    target, reads, read = loaded(write("mimo", tmp_path)), [], mtp._files
    monkeypatch.setattr(mtp, "_files", lambda *args: reads.append(args) or read(*args))
    texts = []
    for inputs in ({"input_ids": prompt()}, cut()) * 2:
        torch.manual_seed(0)
        texts.append(target.generate(**inputs, **OURS, do_sample=True, max_new_tokens=4).tolist())
    assert len(reads) == 1
    assert texts[:2] == texts[2:]  # reading draws no random numbers
    refs = [weakref.ref(x) for x in (target, mtp.mtp_of(target), mtp.mtp_of(target).fc.weight)]
    del target
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_it_follows_the_target_s_type_and_head(tmp_path):
    target = loaded(write("deepseek_v3", tmp_path)).to(torch.bfloat16)
    assert target.generate(prompts(), **OURS, max_new_tokens=8).shape[0] == 4
    assert mtp.mtp_of(target).dtype == torch.bfloat16
    target.float().resize_token_embeddings(VOCAB + 8)
    assert_lossless(target, {"use_mtp": True}, input_ids=prompt(), max_new_tokens=8, eos_token_id=None)
    assert mtp.mtp_of(target).dtype == torch.float32


def test_a_checkpoint_may_be_in_several_files(tmp_path, drafts):
    whole, parts = (loaded(write("qwen3_5", tmp_path / str(x), shards=x)) for x in (False, True))
    for target in (whole, parts):
        target.generate(prompt(), **OURS, do_sample=False, max_new_tokens=12, eos_token_id=None)
    half = len(drafts) // 2
    assert half > 2
    assert [x[1].tolist() for x in drafts[:half]] == [x[1].tolist() for x in drafts[half:]]


def test_a_target_that_sees_images_has_the_layer_of_its_language_model(tmp_path, drafts):
    model, _ = asked("qwen3_5")
    weights = saved(model.float(), tmp_path)
    save_file(weights | layer(FAMILIES["qwen3_5"], weights), tmp_path / "model.safetensors", metadata={"format": "pt"})
    target = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    drafting = {"use_mtp": True, "num_assistant_tokens": 2}
    for alone in (target, loaded(tmp_path)):
        assert_lossless(alone, drafting, **GREEDY, input_ids=prompt() % 60, eos_token_id=None)
    half = len(drafts) // 2
    assert [x[1].tolist() for x in drafts[:half]] == [x[1].tolist() for x in drafts[half:]]


def test_a_generation_config_may_ask_for_it():
    target, config = trained_pair("qwen3_5")[0], GenerationConfig(use_mtp=True, lossy_mode="lossless", max_new_tokens=8)
    target.generate(prompt(), generation_config=config)
    assert last_stats(target).drafted > 0


def test_without_drafts_no_layer_is_read(tmp_path, monkeypatch):
    target = loaded(write("qwen3_5", tmp_path))
    monkeypatch.setattr(mtp, "_files", None)
    assert_lossless(target, {"use_mtp": True, "num_assistant_tokens": 0}, input_ids=prompt(), max_new_tokens=8)


def broken(folder, change):
    """Write a checkpoint whose tensors ``change`` has changed, and load its model."""
    file = write("qwen3_5", folder) / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    return loaded(folder)


def test_targets_without_a_layer_that_can_be_read_are_refused(tmp_path):
    with pytest.raises(LossyValueError, match=r"`use_mtp` reads .* not loaded from one"):
        tiny("qwen3").generate(prompt(), **OURS)

    plain = tmp_path / "plain"
    tiny("qwen3").save_pretrained(plain)
    with pytest.raises(LossyValueError, match=r"`use_mtp` is set, but the checkpoint .*plain.* has no MTP layer"):
        loaded(plain).generate(prompt(), **OURS)

    target = loaded(write("mimo", tmp_path / "gone"))
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(LossyValueError, match=r"`use_mtp` reads the MTP layer .*gone"):
        target.generate(prompt(), **OURS)

    def quantise(weights):
        weights["mtp.layers.0.mlp.up_proj.weight_scale_inv"] = torch.ones(1, 1)

    def lose(weights):
        del weights["mtp.fc.weight"], weights["mtp.layers.0.mlp.up_proj.weight"]

    for change, reason in ((quantise, r"up_proj\.weight_scale_inv"), (lose, r"up_proj\.weight.*fc\.weight")):
        with pytest.raises(LossyUnsupportedError, match=f"`use_mtp` .* other weights .*{reason}"):
            broken(tmp_path / reason[:4], change).generate(prompt(), **OURS)


def test_rules_and_models_that_it_can_t_serve_are_refused(pair):
    target = trained_pair("mimo")[0]
    with pytest.raises(LossyUnsupportedError, match="'sprinter' runs a head on the draft model's states"):
        target.generate(prompt(), use_mtp=True, lossy_mode="sprinter", lossy_head=pair.heads["verifier"])
    with pytest.raises(LossyValueError, match="`assistant_model` is the MTP layer of another model"):
        tiny("llama").generate(prompt(), assistant_model=mtp.mtp_of(target), lossy_mode="lossless")
    with pytest.raises(LossyUnsupportedError, match=r"`tree` .*recurrent state"):
        trained_pair("qwen3_5")[0].generate(prompt(), **OURS, lossy_config={"tree": {"depth": 3}})
