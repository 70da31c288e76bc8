"""One value of any kind at one place of a call that would work: it works, or the error is ours and comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from hf_lossy_assist import LossyError, enabled
from hf_lossy_assist.acceptors import REGISTRY, settings_of
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.errors import brief
from tests.tiny_models import noisy_copy, prompt, tiny

from .drawing import GENERATION, JUNK, RUN_SETTINGS, Attempt, attempt, fields_of

SETTINGS = [("topk", key) for key in RUN_SETTINGS]
SETTINGS += [(name, each.name) for name, rule in REGISTRY.items() for each in settings_of(rule)]
OBJECTS = ("candidate_generator", "assistant_model", "assistant_tokenizer")
FIELDS = (
    *OBJECTS, "lossy_mode", "lossy_config", "lossy_head", "num_assistant_tokens", "assistant_confidence_threshold",
    "num_assistant_tokens_schedule",
)  # fmt: skip
ARGUMENTS = (
    *GENERATION, "eos_token_id", "return_dict_in_generate", "output_scores", "output_logits", "max_new_tokens",
    "max_length", "num_beams", "num_return_sequences", "do_sample", "use_cache", "guidance_scale", "stop_strings",
    "attention_mask", "streamer", "stopping_criteria", "logits_processor", "cache_implementation", CACHE,
    "generation_config", "no_such_argument", "prompt_lookup_num_tokens",
)  # fmt: skip
"""Arguments of transformers' own."""


@dataclass(frozen=True)
class Junk:
    """A call with one odd value, drawn by its number and the trial's seed."""

    kind: str  # of the place: a setting of a rule or a run, a field of ours, or an argument of transformers
    name: str
    rule: Any
    in_config: bool
    do_sample: bool
    value: Any = field(repr=False)
    models: tuple[PreTrainedModel, PreTrainedModel] = field(repr=False)

    @classmethod
    def draw(cls, r: Random, models: tuple[PreTrainedModel, PreTrainedModel]) -> Junk:
        kind = r.choice(["setting", "field", "argument"])
        rule = r.choice(
            ["topk", "judge", "sprinter", ["topk", "judge"]] if kind == "field" else ["lossless", "dropmatch"]
        )
        name = r.choice(FIELDS if kind == "field" else ARGUMENTS)
        if kind == "setting":
            rule, name = r.choice(SETTINGS)
        in_config = kind == "field" and name not in OBJECTS and r.random() < 0.5
        # A callable is the caller's own drafter, which may fail as it likes.
        values = [value for value in JUNK if name != "candidate_generator" or not callable(value)]
        return cls(kind, name, rule, in_config, r.random() < 0.5, r.choice(values), models)

    def check(self) -> str:
        """Return what came of the call; raise where that is not allowed."""
        ours = self.run(fields_of(self.rule, {}, *self.models))
        if ours.error is None:
            return "works"
        if isinstance(ours.error, LossyError):
            if self.kind != "argument":
                assert not ours.forwards, "refused after a forward"
            assert self.kind != "setting" or self.name in str(ours.error)
            return "refused by name"
        assert self.kind == "argument", repr(ours.error)
        plain = self.run(None)
        assert type(plain.error) is type(ours.error), (plain.error, ours.error)
        return "fails as plain does"

    def run(self, lossy: Mapping[str, Any] | None) -> Attempt:
        """Call with these lossy fields, or plainly without."""
        target, draft = self.models
        kwargs = {"input_ids": prompt(), "max_new_tokens": 6, "do_sample": self.do_sample}
        if lossy is not None:
            kwargs |= {"assistant_model": draft, **lossy}
        if self.kind == "setting":
            kwargs["lossy_config"] = {self.name: self.value}
        elif self.in_config:
            kwargs.pop(self.name, None)
            kwargs["generation_config"] = GenerationConfig()
            setattr(kwargs["generation_config"], self.name, self.value)
        else:
            kwargs[self.name] = self.value
        if self.name == "max_length":
            kwargs.pop("max_new_tokens")
        return attempt(lambda: target.generate(**kwargs), target, draft)


def junk(seed: int, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """Values of any kind at any place of a call."""
    target = tiny("llama")
    models, r = (target, noisy_copy(target, 0.05)), Random(seed)
    with enabled():
        for _ in range(count):
            one = Junk.draw(r, models)
            yield f"{one!r}: {brief(one.value)}", one.check
