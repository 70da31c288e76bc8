"""Models, prompts, heads and drafters of the golden cases, made of the public API alone.

The same file runs against two versions of the package, so it imports nothing of either tree's tests.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from hf_lossy_assist import JudgeHead, VerifierHead, pairs

# An older tree of the package does not know it.
CACHE = next(x.name for x in fields(GenerateDecoderOnlyOutput) if x.name in ("cache", "past_key_values"))
"""The name of a cache in the installed transformers."""
VOCAB = 64
LENGTHS = (7, 3, 11)
_IDS = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.2}
_SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, **_IDS}  # fmt: skip
# Sliding windows are shorter than the texts.
ARCHITECTURES: Mapping[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: _filled(LlamaForCausalLM(LlamaConfig(**_SMALL))),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_SMALL, sliding_window=8)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**_SMALL, sliding_window=8, layer_types=["sliding_attention", "full_attention"])
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **_IDS)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, initializer_factor=4.0,
                 decoder_start_token_id=0, **_IDS)
    ),
    "bart": lambda: BartForConditionalGeneration(
        BartConfig(d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
                   decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, init_std=0.3,
                   decoder_start_token_id=0, forced_eos_token_id=None, **_IDS)
    ),
}  # fmt: skip
_NOISE = {"t5": 0.1}


@dataclass(frozen=True, eq=False)
class World:
    """A target, a draft, prompts and trained or random heads.

    Attributes
    ----------
    target, draft
        The models.
    inputs
        From a number of rows to that many prompts, padded on the left.
    heads
        A head per rule that needs one.
    tokenizers
        Of the target and of the draft, where they matter.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    inputs: Mapping[int, dict[str, Tensor]]
    heads: Mapping[str, Any] = field(default_factory=dict)
    tokenizers: tuple[Any, ...] = ()


@functools.cache
def world(name: str) -> World:
    """Build the models of one name once; the caller's random numbers are left alone."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name in _MADE:
            return _MADE[name]()
        return _tiny(name)


@functools.cache
def _bundled() -> Any:
    return pairs.load("arithmetic")


def _arithmetic() -> World:
    pair = _bundled()
    prompts = [example.prompt for example in pair.task.examples("test", 3)]
    inputs = {n: dict(pair.tokenizer(prompts[:n], return_tensors="pt", padding=True)) for n in (1, 3)}
    return World(pair.target, pair.draft, inputs, pair.rule_heads, (pair.tokenizer, pair.tokenizer))


def _tiny(name: str) -> World:
    target = ARCHITECTURES[name]().eval()
    draft = noisy(target, _NOISE.get(name, 0.05))
    heads = {} if target.config.is_encoder_decoder else _heads(target, draft)
    return World(target, draft, {1: _prompts(LENGTHS[:1]), 3: _prompts(LENGTHS)}, heads)


def _eager() -> World:
    made = _tiny("llama")
    made.target.set_attn_implementation("eager")
    return made


def _half(*roles: str) -> World:
    made = _tiny("llama")
    for role in roles:
        getattr(made, role).bfloat16()
    return made


def _words() -> World:
    """A draft with the target's words in another order, some less and one more."""
    words = [a + b for a in "bcdfghklm" for b in "aeiou"]
    tokenizers = _tokenizer(words), _tokenizer([*words[40:], "zzz", *words[:35]])
    ours, theirs = (x.get_vocab() for x in tokenizers)
    target = ARCHITECTURES["llama"]().eval()
    target.resize_token_embeddings(len(ours), mean_resizing=False)
    draft = noisy(target, 0.02)
    draft.resize_token_embeddings(len(theirs), mean_resizing=False)
    rows = torch.tensor([ours.get(word, 3) for word in sorted(theirs, key=theirs.get)])
    with torch.no_grad():
        for get in ("get_input_embeddings", "get_output_embeddings"):
            getattr(draft, get)().weight.copy_(getattr(target, get)().weight[rows])
    texts = ["ba mi ko", "du", "la la be do gu"]
    inputs = {
        n: dict(tokenizers[0](texts[:n], return_tensors="pt", padding=True, return_token_type_ids=False))
        for n in (1, 3)
    }
    return World(target, draft, inputs, _heads(target, draft), tokenizers)


def _resized(size: int) -> World:
    """A draft whose vocabulary is padded differently."""
    made = _tiny("llama")
    made.draft.resize_token_embeddings(VOCAB + size, mean_resizing=False)
    return World(made.target, made.draft, made.inputs, _heads(made.target, made.draft))


def _block() -> World:
    """A draft that fills in a block of tokens from the target's states."""
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    target = ARCHITECTURES["llama"]().eval()
    sizes = {name: value for name, value in _SMALL.items() if name not in _IDS and name != "num_hidden_layers"}
    config = MuseGlimmerAssistantConfig(
        **sizes, num_hidden_layers=1, block_size=4, mask_token_id=5, target_layer_ids=[0, 1], sliding_window=8,
        pad_token_id=0,
    )  # fmt: skip
    draft = MuseGlimmerAssistantModel(config).eval()
    return World(target, draft, {1: _prompts(LENGTHS[:1]), 3: _prompts(LENGTHS)})


def _next_tokens() -> World:
    """A model with layers that predict tokens further on; their weights would be in its checkpoint."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    from transformers.modeling_layers import MtpModel

    config = DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, num_mtp_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        initializer_range=0.2,
    )  # fmt: skip
    target = DeepseekV3ForCausalLM(config).eval()

    def from_pretrained(main_model: PreTrainedModel, device_map: Any = None) -> MtpModel:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            model = MtpModel(main_model, 2).eval()
            for parameter in model.layers.parameters():
                parameter.normal_(std=0.2) if parameter.dim() > 1 else parameter.fill_(1)
        return model

    MtpModel.from_pretrained = from_pretrained
    return World(target, target, {1: _prompts(LENGTHS[:1]), 3: _prompts(LENGTHS)})


_MADE: Mapping[str, Callable[[], World]] = {
    "arithmetic": _arithmetic,
    "llama-eager": _eager,
    "words": _words,
    "smaller": lambda: _resized(-9),
    "larger": lambda: _resized(7),
    "half": lambda: _half("target", "draft"),
    "half draft": lambda: _half("draft"),
    "block": _block,
    "next tokens": _next_tokens,
}


def _filled(model: PreTrainedModel) -> PreTrainedModel:
    """Draw the weights anew, in an order that does not depend on the version of transformers."""
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    return model


def noisy(model: PreTrainedModel, noise: float) -> PreTrainedModel:
    """Return a draft that agrees with ``model`` at times."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(draft.named_parameters()):
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return draft


def _heads(target: PreTrainedModel, draft: PreTrainedModel) -> dict[str, Any]:
    return {"judge": judge(target, draft), "sprinter": verifier(target, draft)}


def judge(
    target: PreTrainedModel, draft: PreTrainedModel, models: str = "target", positions: str = "draft"
) -> JudgeHead:
    """Return a random judge; the classes of its configuration are those of the bundled head's."""
    return JudgeHead(*_head("judge", target, draft, 0.2, models=models, positions=positions))


def verifier(target: PreTrainedModel, draft: PreTrainedModel, position: str = "previous") -> VerifierHead:
    """Return a random verifier that accepts more often than not."""
    return VerifierHead(*_head("verifier", target, draft, 1.0, position=position, ratio=1.0))


def _head(kind: str, target: PreTrainedModel, draft: PreTrainedModel, bias: float, **reads: Any) -> tuple[Any, ...]:
    like = _bundled().heads[kind].config
    models = {"target": type(like.target).of(target), "draft": type(like.target).of(draft)}
    config = type(like)(**models, task="none", threshold=0.5, **reads)
    weight = torch.randn(config.width, generator=torch.Generator().manual_seed(4))
    return config, 2 * weight / config.width**0.5, bias


def _prompts(lengths: tuple[int, ...]) -> dict[str, Tensor]:
    texts = [torch.randint(3, VOCAB, (n,), generator=torch.Generator().manual_seed(i)) for i, n in enumerate(lengths)]
    width = max(lengths)
    ids = torch.stack([torch.nn.functional.pad(x, (width - len(x), 0)) for x in texts])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def _tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    inner = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *words])}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, padding_side="left", **special)


class OwnDrafter(CandidateGenerator):
    """Drafts four tokens without a cache, by random numbers of its own where it reports what it drew from."""

    def __init__(self, model: PreTrainedModel, room: int, drawn: bool) -> None:
        self.model, self.room, self.drawn = model, room, drawn
        self.generator = torch.Generator().manual_seed(5)

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        ids, laws = input_ids, []
        for _ in range(min(4, self.room - input_ids.shape[1] - 1)):
            with torch.no_grad():
                laws.append(self.model(input_ids=ids).logits[:, -1].float())
            token = laws[-1].argmax(-1, keepdim=True)
            if self.drawn:
                token = torch.multinomial(laws[-1].softmax(-1), 1, generator=self.generator)
            ids = torch.cat([ids, token], 1)
        return ids, torch.stack(laws, 1) if self.drawn and laws else None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        pass


def _own(world: World, drawn: bool) -> dict[str, Any]:
    def factory(generation_config: Any, **context: Any) -> OwnDrafter:
        return OwnDrafter(world.draft, generation_config.max_length, drawn)

    return {"candidate_generator": factory}


DRAFTERS: Mapping[str, Callable[[World], dict[str, Any]]] = {
    "assistant": lambda w: {"assistant_model": w.draft},
    "lookup": lambda w: {"prompt_lookup_num_tokens": 4},
    "words": lambda w: {
        "assistant_model": w.draft, "tokenizer": w.tokenizers[0], "assistant_tokenizer": w.tokenizers[1],
    },
    "own": lambda w: _own(w, drawn=False),
    "own-drawn": lambda w: _own(w, drawn=True),
    "own instance": lambda w: {"candidate_generator": OwnDrafter(w.draft, 39, drawn=False)},
    "next tokens": lambda w: {"use_mtp": True},
    "block": lambda w: {"assistant_model": w.draft, "speculation_type": "dflash"},
    "none": lambda w: {},
}  # fmt: skip
"""From a drafter's name and a world to the keywords of ``generate()`` that choose it."""


class Listener(BaseStreamer):
    """Remembers what it was given, and in which portions."""

    def __init__(self) -> None:
        self.portions: list[list[int]] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        self.portions.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1
