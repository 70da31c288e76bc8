"""Targets and drafts that read images, sounds and pages; the oracle is plain ``generate()``."""

from __future__ import annotations

from random import Random

import pytest
import torch
from transformers import BertConfig, BertModel, LogitsProcessorList
from transformers.generation import utils as generation_utils

from hf_lossy_assist import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.compat.models import unwrap
from hf_lossy_assist.compat.probe import obstacle_to_rollback
from tests.acceptors.fixtures import HEADS
from tests.architectures import ATTENDING, family
from tests.eagle3_heads import random_head
from tests.multimodal_models import IMAGE, MODELS, ROW_BY_ROW, asked, mllama
from tests.nightly import nightly, spread
from tests.parity import TIE, assert_same_rows
from tests.tiny_models import VOCAB, noisy_copy, padded, prompt, tiny
from tests.trial.drawing import counted
from tests.trial.readers import inputs_of, reader

# transformers 5.14 calls its own deprecated argument.
pytestmark = pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning")
GREEDY = {"do_sample": False, "max_new_tokens": 16, "return_dict_in_generate": True, "output_logits": True}
DRAFTERS = {
    "the target itself": lambda target: {"assistant_model": target},
    "a model": lambda target: {"assistant_model": noisy_copy(target, 0.01), "num_assistant_tokens": 4},
    "a model, default length": lambda target: {"assistant_model": noisy_copy(target, 0.01)},
    "a text model": lambda target: {"assistant_model": text_only(target)},
    "look-up": lambda target: {"prompt_lookup_num_tokens": 3},
}


def text_only(target, noise: float = 0.01):
    """Return a text model with what it has in common with the target's language model."""
    draft = tiny("gemma3" if "Gemma" in type(target).__name__ else "llama")
    own = draft.state_dict()
    for name, weight in noisy_copy(target, noise).state_dict().items():
        short = name.replace("model.language_model.", "model.")
        if short in own and own[short].shape == weight.shape:
            own[short] = weight
    draft.load_state_dict(own)
    return draft.to(target.dtype)


def ends(rows: int):
    """Return tokens that end rows at different times."""
    return [5, 9, 20, 30] if rows > 1 else None


def lossless(target, inputs, rows: int = 1, cache_implementation: str | None = None, tie: float = 1e-6, **drafting):
    """Return our output, whose text is that of plain generate()."""
    kwargs = GREEDY | {"eos_token_id": ends(rows), "pad_token_id": 0, "cache_implementation": cache_implementation}
    plain = target.generate(**copied(inputs), **kwargs)
    ours = target.generate(**copied(inputs), **kwargs, lossy_mode="lossless", **drafting)
    assert_same_rows(ours.sequences, plain, tie if target.dtype == torch.float64 else max(tie, TIE))
    return ours


def copied(inputs):
    return {name: value.clone() for name, value in inputs.items()}


# A method of the versions that encode images before they decode.
SPLITS = "_prepare_multimodal_encoder_kwargs_for_generation"
# Whether what they encoded can be split into rows, which 5.18 can't.
SPLIT_ROWS = hasattr(generation_utils, "_slice_mm_encoder_output")


@spread(
    name=MODELS,
    case=[
        (1, "the target itself"),
        (3, "a model, default length"),
        (1, "a model"),
        (3, "a text model"),
        (3, "look-up"),
    ],
)
def test_lossless_parity(name: str, case: tuple[int, str]):
    rows, drafter = case
    target, inputs = asked(name, rows)
    if drafter == "a text model" and name in ("kyutai", "udop"):
        pytest.skip("no text precedes what is drafted")
    if obstacle_to_rollback(target, several=True) or (rows > 1 and name in ROW_BY_ROW and not SPLIT_ROWS):
        with pytest.raises(LossyUnsupportedError, match=r"one prompt at a time|roll (the|its) cache back"):
            lossless(target, inputs, rows, **DRAFTERS[drafter](target))
        return
    ours = lossless(target, inputs, rows, **DRAFTERS[drafter](target))
    assert ours.lossy_stats.drafted > 0 or drafter == "look-up"


# Towers and projections of each kind: joined embeddings, cross-attention, three-dimensional positions, states, sounds.
SOME = nightly(MODELS, but=("llava", "gemma3", "qwen2_vl_video", "qwen3_5", "qwen2_audio", "mllama", "udop"))


@pytest.mark.parametrize("name", SOME)
def test_a_draft_sees_what_the_target_sees(name: str):
    """So a target keeps all that it has drafted itself."""
    target, inputs = asked(name)
    if obstacle_to_rollback(target, several=True):
        pytest.skip("this version can't go on from its states")
    target.generation_config.suppress_tokens = [IMAGE]  # which it would not have drafted
    ours = lossless(target, inputs, assistant_model=target, num_assistant_tokens=3)
    assert ours.lossy_stats.accepted == ours.lossy_stats.drafted > 0


@pytest.mark.parametrize("name", SOME)
def test_what_a_model_sees_changes_its_logits(name: str):
    """Otherwise no text would tell whose image a row or a draft has seen."""
    target, inputs = asked(name)
    other = {name: x.flip(-1) if x.is_floating_point() else x for name, x in inputs.items()}
    call = GREEDY | {"eos_token_id": None}
    mine, others = (torch.cat(target.generate(**seen, **call).logits) for seen in (inputs, other))
    assert (mine - others).abs().max() > 1e-4


def test_several_sequences_of_a_prompt_with_an_image():
    target, inputs = asked("llava", 2)
    drafting = {"assistant_model": noisy_copy(target, 0.01), "lossy_mode": "lossless", "lossy_config": {"seed": 0}}
    texts = target.generate(**inputs, do_sample=True, num_return_sequences=2, max_new_tokens=8, **drafting)
    assert len(texts) == 4


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_rows_with_different_numbers_of_images(name: str):
    """Rows that are decoded one by one each get their own images, or the call is refused by name."""
    target, inputs = asked(name, 3)
    ids = inputs["input_ids"]
    ids[0, 3:7] = 9  # no image; row 2 keeps one, row 1 has the two of both
    ids = inputs["input_ids"] = torch.cat([torch.where(torch.arange(3)[:, None] == 1, IMAGE, 9).expand(3, 4), ids], 1)
    inputs["attention_mask"] = torch.ones_like(ids)
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = (ids == IMAGE).long()
    plain = target.generate(**inputs, **GREEDY, eos_token_id=ends(3))
    kwargs = GREEDY | {"eos_token_id": ends(3), "prompt_lookup_num_tokens": 3, "lossy_mode": "lossless"}
    if SPLIT_ROWS:
        assert_same_rows(target.generate(**inputs, **kwargs).sequences, plain, 1e-6)
    else:
        with pytest.raises(LossyUnsupportedError, match=r"one prompt at a time|roll (the|its) cache back"):
            target.generate(**inputs, **kwargs)


@spread(name=["llava", "gemma3", "qwen2_vl", "qwen2_audio"], drafter=["look-up", "a model", "sprinter"])
def test_placeholders_are_not_drafted(name: str, drafter: str):
    """A prompt repeats the words before its image, and a draft says nothing but the placeholder."""
    target, inputs = asked(name)
    ids = inputs["input_ids"]
    ids = inputs["input_ids"] = torch.cat([ids, ids[:, :3]], dim=1)  # ends with the words before the image
    inputs["attention_mask"] = torch.ones_like(ids)
    for types in ("token_type_ids", "mm_token_type_ids"):
        if types in inputs:
            inputs[types] = (ids == IMAGE).long()
    drafting = {"prompt_lookup_num_tokens": 3}
    if drafter != "look-up":
        draft = text_only(target)
        draft.lm_head.register_forward_hook(lambda module, args, logits: logits.index_fill(-1, torch.tensor(IMAGE), 99))
        drafting = {"assistant_model": draft, "num_assistant_tokens": 3}
    if drafter == "sprinter":
        head = HEADS["sprinter"](target, draft)
        target.generate(**inputs, max_new_tokens=12, lossy_mode="sprinter", lossy_head=head, assistant_model=draft)
        return
    lossless(target, inputs, **drafting)


@spread(name=["llava", "qwen2_vl", "qwen3_5"], whole=[{}, {"output_hidden_states": True}])
def test_a_target_may_write_a_placeholder(name: str, whole: dict):
    """It is a word then, so it is not read once more together with the images."""
    target, inputs = asked(name)
    place = inputs["input_ids"].shape[1] + 4  # no draft of the first round reaches it

    def write(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor(IMAGE), 99.0) if ids.shape[1] == place else scores

    drafting = {"assistant_model": noisy_copy(target, 0.3), "num_assistant_tokens": 3, "lossy_mode": "lossless"}
    plain, ours = (
        target.generate(**copied(inputs), **GREEDY, **whole, logits_processor=LogitsProcessorList([write]), **more)
        for more in ({}, drafting)
    )
    assert plain.sequences[0, place] == IMAGE
    assert_same_rows(ours.sequences, plain, 1e-6)
    assert ours.lossy_stats.accepted < ours.lossy_stats.drafted


@spread(
    name=["llava", "gemma3"],
    settings=[
        {"lossy_config": {"tree": {"depth": 2, "top_k": 2}}},
        {"lossy_config": {"tree": {"depth": 2, "top_k": 1}}},
        {"lossy_config": {"compile": False}, "cache_implementation": "static"},
    ],
    rows=[1, 3],
)
def test_text_alone_is_what_a_text_model_reads(name: str, settings: dict, rows: int, recwarn):
    """Trees and static caches work on targets that could read more."""
    target, inputs = asked(name, rows)
    inputs = {"input_ids": inputs["input_ids"][:, -4:], "attention_mask": inputs["attention_mask"][:, -4:]}
    lossless(target, inputs, rows, assistant_model=noisy_copy(target, 0.01), **settings)
    assert not [x for x in recwarn if "no effect" in str(x.message)]


@pytest.mark.parametrize("name", [x for x in ("gemma2", "gemma3_text", "gpt_oss", "llama") if x in ATTENDING])
def test_trees_of_one_node_a_depth(name: str):
    target, draft = family(name)
    config = {"tree": {"depth": 2, "top_k": 1}}
    lossless(target, padded((7, 3, 5)), 3, assistant_model=draft, lossy_config=config, tie=2e-3)


@pytest.mark.parametrize("name", [*(x for x in ("gemma3n_text", "gemma4_text") if x in ATTENDING), "mllama"])
def test_heads_need_a_state_of_every_layer_for_every_token(name: str):
    target = family(name)[0] if name != "mllama" else mllama(1)[0].eval()
    total = target.config.get_text_config(decoder=True).num_hidden_layers
    head = random_head(target_layers=(0, 1, total))
    with counted(target) as forwards, pytest.raises(LossyUnsupportedError, match="EAGLE-3"):
        target.generate(prompt(), assistant_model=head, lossy_mode="lossless", max_new_tokens=4)
    assert not forwards


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_cross_attention_without_a_mask(attention: str):
    """SDPA would hide the image from some of several tokens; eager attention does not."""
    target, inputs = asked("mllama")
    target.set_attn_implementation(attention)
    del inputs["cross_attention_mask"]
    drafting = {"assistant_model": noisy_copy(target, 0.01)}
    if attention == "eager":
        lossless(target, inputs, **drafting)
        return
    with counted(target) as forwards, pytest.raises(LossyUnsupportedError, match="pass `cross_attention_mask`, or use"):
        target.generate(**inputs, **drafting, lossy_mode="lossless")
    assert not forwards


@pytest.mark.parametrize("name", ["paligemma", "paligemma2"])
def test_a_prompt_whose_tokens_see_later_ones_without_being_told(name: str):
    """Without token types a prompt is read in both directions, so no draft may stand behind it."""
    target, _ = asked(name)
    inputs = {"input_ids": prompt() % IMAGE, "attention_mask": torch.ones(1, 7).long()}
    lossless(target, inputs, assistant_model=noisy_copy(target, 0.01), num_assistant_tokens=3)


def test_an_image_of_an_earlier_turn():
    """A second turn has no inputs of images, but the cache that the first one returned still shows it."""
    target, inputs = asked("mllama")
    first = target.generate(**inputs, **GREEDY, pad_token_id=0)
    ids = torch.cat([first.sequences, prompt(2) % IMAGE], dim=1)
    turn = {"input_ids": ids, "attention_mask": torch.ones_like(ids), CACHE: first[CACHE]}
    with counted(target) as forwards, pytest.raises(LossyUnsupportedError, match="pass `cross_attention_mask`, or use"):
        target.generate(**turn, prompt_lookup_num_tokens=3, lossy_mode="lossless")
    assert not forwards


@spread(length=[5, 40], rows=[1, 2], drafter=["assistant", "look-up"])
def test_keys_of_an_image_stay_when_the_text_is_rolled_back(length: int, rows: int, drafter: str):
    """They are fewer than the text's, or more, and every row of a batch keeps its own."""
    target, inputs = asked("mllama", rows)
    ids = torch.cat([torch.full((rows, 1), IMAGE), prompt(length).repeat(rows, 1) % (VOCAB - 4)], dim=1)
    ids[-1, 1:] = ids[-1, 1:].roll(2)
    mask = torch.ones(*ids.shape, 1, 1, dtype=torch.long)
    inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids), "cross_attention_mask": mask}
    draft = tiny("llama").double()
    with torch.no_grad():
        draft.model.embed_tokens.weight.copy_(target.model.language_model.embed_tokens.weight[:VOCAB])
        draft.lm_head.weight.copy_(target.lm_head.weight)
    drafting = {"assistant_model": draft} if drafter == "assistant" else {"prompt_lookup_num_tokens": 4}
    ours = lossless(target, inputs, rows, **drafting)
    assert ours.lossy_stats.drafted > 0


@spread(rows=[1, 3], drafter=["a model", "a model, default length", "look-up"])
def test_positions_go_beyond_the_text_s_length(rows: int, drafter: str):
    target, inputs = asked("qwen2_vl_video", rows)
    positions = torch.arange(inputs["input_ids"].shape[1]) * 5
    inputs["position_ids"] = positions.expand(4, rows, -1)
    lossless(target, inputs, rows, **DRAFTERS[drafter](target))


@pytest.mark.parametrize("drafter", ["the target itself", "a model"])
def test_a_model_that_remembers_positions_reads_padded_text(drafter: str):
    target, _ = asked("qwen2_vl")
    lossless(target, padded(), 4, **DRAFTERS[drafter](target))


STATIC_DRAFTERS = DRAFTERS | {
    "a tree": lambda target: {"assistant_model": noisy_copy(target, 0.01),
                              "lossy_config": {"tree": {"depth": 3, "top_k": 2, "nodes": 6}}},
    "a tree of one branch": lambda target: {"assistant_model": noisy_copy(target, 0.01),
                                            "lossy_config": {"tree": {"depth": 3, "top_k": 1}}},
}  # fmt: skip


@spread(case=[*((False, x) for x in STATIC_DRAFTERS), *((True, x) for x in DRAFTERS)], rows=[1, 3])
def test_layers_that_attend_to_no_image_are_empty_in_static_caches(case: tuple[bool, str], rows: int):
    sees, drafter = case
    target, inputs = asked("mllama", rows)
    if sees and not hasattr(target, SPLITS):
        pytest.skip("in this version plain generate() fails")
    if not sees:
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        inputs["input_ids"][inputs["input_ids"] == IMAGE] = 9
    drafting = STATIC_DRAFTERS[drafter](target)
    lossless(target, inputs, rows, cache_implementation="static", **drafting)


def test_a_draft_has_to_generate():
    target = tiny("llama")
    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48)
    for draft in (BertModel(config), target.model):
        with pytest.raises(LossyValueError, match="`assistant_model` has to be a model that can generate"):
            target.generate(prompt(), assistant_model=draft, lossy_mode="lossless")


@pytest.mark.parametrize("name", ["udop", "idefics", "llava"])
def test_a_draft_of_another_dtype(name: str):
    """What it reads comes in its own type."""
    target, inputs = asked(name)
    if obstacle_to_rollback(target, several=True):
        pytest.skip("this version can't go on from its states")
    lossless(target, inputs, assistant_model=noisy_copy(target, 0.01).float())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # asked for by peft
def test_an_adapter_for_each_row_is_for_one_row():
    peft = pytest.importorskip("peft")
    target = tiny("llama")
    draft = noisy_copy(target).double()
    lora = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    torch.manual_seed(1)
    model = peft.get_peft_model(target, peft.LoraConfig(**lora), adapter_name="one")
    model.add_adapter("two", peft.LoraConfig(**lora))
    model, kwargs = model.double().eval(), GREEDY | {"lossy_mode": "lossless", "assistant_model": draft}
    texts = [model.generate(**GREEDY, input_ids=prompt(), adapter_names=[name]).sequences for name in ("one", "two")]
    ours = model.generate(**kwargs, input_ids=prompt(), adapter_names=["two"]).sequences
    assert ours.tolist() == texts[1].tolist() != texts[0].tolist()
    names = {"adapter_names": ["one", "two", "__base__", "one"]}
    with counted(unwrap(model)) as forwards, pytest.raises(LossyUnsupportedError, match=r"`adapter_names`.*4 rows"):
        model.generate(**kwargs, **padded(), **names, pad_token_id=0)
    assert not forwards


@pytest.mark.parametrize(
    ("target", "draft"), [("paligemma2", "lfm2_vl"), ("lfm2_vl", "paligemma2"), ("t5", "whisper"), ("llava", "idefics")]
)
def test_a_draft_that_reads_other_images_or_sounds_is_refused(target: str, draft: str):
    inputs = inputs_of(Random(0), target, 1)
    if "lfm2_vl" in (target, draft) and obstacle_to_rollback(reader("lfm2_vl")[0], several=True):
        pytest.skip("this version can't go on from its states")
    with (
        counted(reader(target)[0]) as forwards,
        pytest.raises(LossyUnsupportedError, match="can't read what the target reads"),
    ):
        reader(target)[0].generate(**inputs, assistant_model=reader(draft)[0], lossy_mode="lossless", max_new_tokens=4)
    assert not forwards


def test_a_draft_whose_generate_runs_a_model_inside_reads_text_alone():
    target, _ = asked("kosmos2")
    if not SPLIT_ROWS:
        pytest.skip("in this version plain generate() needs an image")
    ours = lossless(target, {"input_ids": prompt()}, assistant_model=noisy_copy(target, 0.01))
    assert ours.lossy_stats.accepted > 0
