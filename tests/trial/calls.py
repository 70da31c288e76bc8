"""Random calls of ``generate()``: families × caches × drafters × rules × processors × criteria × batch × outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache, LogitsProcessor, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from hf_lossy_assist import LossyError, enabled, last_stats
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.compat.models import forward_accepts, supports_static_cache, unwrap
from hf_lossy_assist.compat.probe import obstacle_to_rollback
from tests.architectures import ATTENDING, RECURRENT, family
from tests.golden.cases import RULES
from tests.parity import assert_same_rows
from tests.tiny_models import LENGTHS, VOCAB, padded, prompt

from .drawing import GENERATION, RUN_SETTINGS, attempt, fields_of, random_rules, some
from .readers import READERS, SEEING, decoder_of_whisper, inputs_of, reader
from .surroundings import SURROUNDINGS

ENDS = (None, None, 2, [5, 17, 23, 40], list(range(3, 24)))
CACHES = ("", "", "", "", "dynamic", "dynamic", "static", "static", "own", "own", "continued", "ahead", "prefilled",
          "prefilled")  # fmt: skip
OUTPUTS = ("output_scores", "output_logits", "output_hidden_states", "output_attentions")
# Sums of many experts, and of states of one token after another, come out in another order.
TIE = 2e-3


class Kept:
    """Ids that a caller's own code was given, beside copies that were made when they came."""

    def __init__(self) -> None:
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(self, ids: torch.Tensor) -> None:
        self.pairs.append((ids, ids.clone()))

    def check(self) -> None:
        assert all(torch.equal(*pair) for pair in self.pairs), "ids have changed that the caller may keep"


class KeepingProcessor(Kept, LogitsProcessor):
    def __deepcopy__(self, memo: dict) -> KeepingProcessor:
        return self  # what it keeps changes no result, and the trial looks at it

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.keep(input_ids)
        return scores


class KeepingCriterion(Kept, StoppingCriteria):
    """Ends a text where its last two tokens have some sum."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.keep(input_ids)
        return input_ids[:, -2:].sum(-1) % 11 == 0


class Damaged(LogitsProcessor):
    """Writes a value into the logits of some tokens, or of all, from some length on."""

    def __init__(self, value: float, tokens: Sequence[int] | None, start: int, step: int = 1) -> None:
        self.value, self.tokens, self.start, self.step = value, tokens, start, step

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        if length < self.start or (length - self.start) % self.step:
            return scores
        scores = scores.clone()
        scores[:, slice(None) if self.tokens is None else list(self.tokens)] = self.value
        return scores


DAMAGES = {
    "NaN": Damaged(float("nan"), [3, 9], 9),
    "all NaN": Damaged(float("nan"), None, 10, step=3),
    "+inf": Damaged(float("inf"), [9], 9, step=2),
    "+inf twice": Damaged(float("inf"), [9, 5], 9, step=2),
    "-inf but one": Damaged(-float("inf"), [i for i in range(64) if i != 7], 9, step=2),
    "nothing allowed": Damaged(-float("inf"), None, 10, step=3),
    "nothing allowed at all": Damaged(-float("inf"), None, 0),
}


def _never_the_last(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    # A token that is forced stays: whoever has none left to draw fails, and only some draws get there.
    forced = (scores > -torch.inf).sum(-1, keepdim=True) == 1
    return torch.where(forced, scores, scores.scatter(1, input_ids[:, -1:], -torch.inf))


@dataclass(frozen=True)
class Call:
    """One random call; all of it follows from its number and the trial's seed."""

    name: str
    target: PreTrainedModel = field(repr=False)
    drafts: tuple[PreTrainedModel, ...] = field(repr=False)
    drafting: Mapping[str, Any] = field(repr=False)
    drafter: str
    rule: Any
    settings: Mapping[str, Any]
    cache: str
    kwargs: Mapping[str, Any]
    prompts: Mapping[str, torch.Tensor] = field(repr=False)
    surroundings: str

    @classmethod
    def draw(cls, seed: int, number: int) -> Call:
        r = Random(f"{seed} {number}")
        name = _name(r)
        target, draft = _pair(name)
        drafting, drafts = _drafting(r, name, target, draft)
        rows, do_sample = r.choice([1, 1, 1, 2, 3, 4]), r.random() < 0.25
        reads = name in READERS and (name not in SEEING or r.random() < 0.7)
        if reads:
            prompts = inputs_of(r, name, rows)
        else:
            prompts = {"input_ids": prompt(r.randint(1, 12), r.randrange(9))} if rows == 1 else padded(LENGTHS[:rows])
            if r.random() < 0.1:
                prompts["input_ids"] = prompts["input_ids"].int()
        kwargs = {"max_new_tokens": r.randint(1, 24), "do_sample": do_sample, "eos_token_id": r.choice(ENDS)}
        kwargs |= some(r, GENERATION, r.choice([0, 0, 3])) | _callables(r, do_sample)
        if do_sample and r.random() < 0.3:
            kwargs["num_return_sequences"] = r.randint(2, 3)
        kwargs |= {output: True for output in OUTPUTS if r.random() < 0.1}
        rule, own = r.choice([("lossless", {}), ("lossless", {}), r.choice(sorted(RULES.items()))[1], random_rules(r)])
        settings = {**own, "seed": r.randrange(99), **some(r, RUN_SETTINGS, r.choice([0, 0, 0, 2]))}
        drafter = ", ".join(f"{key}={getattr(value, 'name_or_path', value)}" for key, value in drafting.items())
        cache = r.choice(CACHES[: 9 if rows > 1 or reads else None])
        if cache == "static" and not supports_static_cache(unwrap(target)):
            cache = ""  # plain generate() itself reads the empty slots
        if name not in READERS:
            prompts |= _aligned(r, target, prompts["input_ids"], prompts.get("attention_mask"))
        if "assistant_model" in drafting and r.random() < 0.1:
            settings["tree"] = {"depth": r.randint(1, 4), "top_k": r.randint(1, 3), "nodes": r.choice(["auto", 6])}
        if rows == 1 and not reads and cache in ("", "dynamic", "static") and r.random() < 0.15:
            mask = torch.ones_like(prompts["input_ids"])
            prompts = {key: pad(value, (3, 0)) for key, value in {**prompts, "attention_mask": mask}.items()}
        # With an encoder, plain generate() forgets the encoder's mask.
        if r.random() < 0.15 and not unwrap(target).config.is_encoder_decoder:
            kwargs["prefill_chunk_size"] = r.choice([1, 3, 8, 64])
        around = r.choice([*SURROUNDINGS]) if r.random() < 0.3 else "nothing"
        return cls(
            f"{seed}.{number} {name}", target, drafts, drafting, drafter, rule, settings, cache, kwargs,
            prompts, around,
        )  # fmt: skip

    def run(self, **more: Any) -> Any:
        """Call ``generate()``, twice in a row with one cache where that is the case.

        A cache may be ahead, too: then it holds tokens that the ids lack, and only the mask covers them. And it may be
        prefilled with the ids.
        """
        kwargs = {"pad_token_id": 0, "return_dict_in_generate": True} | dict(self.kwargs) | more
        prompts = dict(self.prompts)
        if self.cache in ("own", "continued"):
            kwargs[CACHE] = DynamicCache(config=self.target.config)
        elif self.cache == "ahead":
            kwargs[CACHE] = filled(self.target, before := prompt(9, seed=5))
            prompts["attention_mask"] = torch.ones(1, before.shape[1] + prompts["input_ids"].shape[1]).long()
        elif self.cache == "prefilled":
            kwargs[CACHE] = filled(self.target, prompts["input_ids"])
        elif self.cache:
            kwargs["cache_implementation"] = self.cache
        out = self.target.generate(**prompts, **kwargs)
        if self.cache != "continued":
            return out
        kwargs[CACHE] = getattr(out, CACHE)
        ids = torch.cat([out.sequences, out.sequences[:, :1] * 0 + 7], dim=1)
        return self.target.generate(ids, attention_mask=torch.ones_like(ids), **kwargs)

    def check(self) -> str:
        """Return what came of the call; raise where it should have been another thing."""
        models = [*self.drafts, self.target]
        for model in models:
            obstacle_to_rollback(unwrap(model), True)  # which asks a model once, by forwards that are no call's
        kept = [x for name in ("logits_processor", "stopping_criteria") for x in self.kwargs.get(name, ())]
        kept = [x for x in kept if isinstance(x, Kept)]
        lossy = fields_of(self.rule, self.settings, unwrap(self.target), unwrap(self.drafts[-1]))
        with enabled(), SURROUNDINGS[self.surroundings](self.target):
            plain = attempt(lambda: self.run(output_logits=True, output_scores=True), self.target)
            for one in kept:
                one.pairs.clear()
            ours = attempt(lambda: self.run(**lossy, **self.drafting), *models)
        for one in kept:
            one.check()
        assert not any(map(hooks_left_on, models)), "a hook was left"
        if isinstance(ours.error, LossyError):
            # What a first call has returned can be refused by a second one, and so can a cache that was filled for it.
            # A target that drafts for itself counts twice.
            filling = models.count(self.target)
            own = {"continued": ours.forwards, "ahead": filling, "prefilled": filling}.get(self.cache, 0)
            own += "can't read what the target reads" in str(ours.error)  # a forward of the draft tells
            assert ours.forwards <= own, f"refused after {ours.forwards} forwards"
            return "refused by name"
        if plain.error is not None:
            assert ours.error is None or type(ours.error) is type(plain.error), repr(ours.error)
            return "fails as plain does" if ours.error else "works where plain fails"
        if ours.error is not None:
            raise ours.error
        return self._compare(plain.value, ours.value)

    def _compare(self, plain: Any, ours: Any) -> str:
        # Whisper puts outputs together anew.
        stats, continued = ours.lossy_stats or last_stats(self.target), self.cache == "continued"
        start = plain.sequences.shape[1] - len(plain.scores)
        assert ours.sequences[:, :start].equal(plain.sequences[:, :start]) or continued
        assert ((ours.sequences >= 0) & (ours.sequences < VOCAB)).all()
        assert ours.sequences.shape[1] <= start + self.kwargs["max_new_tokens"] or continued
        if len(ours.sequences) == 1:
            text = ours.sequences[0, start:].tolist()
            assert len(stats.trace) <= self.kwargs["max_new_tokens"]
            assert continued or len(stats.trace) == len(text)
            ends = self.kwargs["eos_token_id"] or []
            assert continued or not {*(ends if isinstance(ends, list) else [ends])} & {*text[:-1]}, (
                "went on after its end"
            )
        if stats.lossless and not self.kwargs["do_sample"]:
            assert_same_rows(ours.sequences, SimpleNamespace(sequences=plain.sequences, logits=plain.scores), TIE)
            if ours.sequences.equal(plain.sequences) and not continued:
                mask = self.prompts.get("attention_mask")
                real = None if mask is None or len(mask) > 1 else mask[0].bool()
                for name in ("scores", "logits", "hidden_states", "decoder_hidden_states"):
                    _assert_same_output(ours.get(name), plain.get(name), len(ours.sequences) == 1, real)
            return "equal to plain"
        return "keeps its promises"


@torch.no_grad()
def filled(target: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor | None = None) -> DynamicCache:
    """Return a cache that holds ``ids`` ``(1, L)``."""
    cache = DynamicCache(config=target.config)
    positions = {} if mask is None else {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    target(ids, attention_mask=mask, **positions, **{CACHE: cache}, use_cache=True)
    return cache


def _aligned(
    r: Random, target: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Draw what a caller may say about each token: positions that begin anywhere in each row, and token types."""
    drawn = {}
    if forward_accepts(target, "position_ids") and r.random() < 0.15:
        positions = ((torch.ones_like(ids) if mask is None else mask).cumsum(-1) - 1).clamp(min=0)
        drawn["position_ids"] = positions + torch.tensor([[r.randint(0, 30)] for _ in ids])
    if forward_accepts(target, "token_type_ids") and r.random() < 0.5:
        drawn["token_type_ids"] = torch.tensor([[r.randrange(2) for _ in row] for row in ids])
    return drawn


def _assert_same_output(ours: Any, plain: Any, values: bool, real: torch.Tensor | None) -> None:
    """Compare what was recorded token by token: shapes, and values where no row ends before another.

    ``real`` ``(L,)`` are the tokens of a prompt that are no padding: what a layer says there is nobody's business.
    """
    if isinstance(ours, tuple):
        assert len(ours) == len(plain)
        for a, b in zip(ours, plain, strict=True):
            _assert_same_output(a, b, values, real)
    elif ours is not None:
        assert ours.shape == plain.shape
        if values:
            if real is not None and ours.dim() == 3 and ours.shape[1] == len(real):
                ours, plain = ours[:, real], plain[:, real]
            torch.testing.assert_close(ours, plain, atol=2e-3, rtol=2e-3, equal_nan=True)


def hooks_left_on(model: PreTrainedModel) -> list[Any]:
    """Return this package's hooks on a model; transformers leaves some of its own."""
    hooks = [
        h for module in model.modules() for x in (module._forward_pre_hooks, module._forward_hooks) for h in x.values()
    ]
    return [hook for hook in hooks if type(hook).__module__.startswith("hf_lossy_assist")]


def _name(r: Random) -> str:
    return r.choice(r.choices([ATTENDING, RECURRENT, READERS], [60, 15, 25])[0])


def _pair(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    return reader(name) if name in READERS else family(name)


def _callables(r: Random, do_sample: bool) -> dict[str, Any]:
    """Draw processors and criteria of the caller's own; a damaged law that is to be drawn from is another test's."""
    processors = [KeepingProcessor()] * (r.random() < 0.2) + [_never_the_last] * (r.random() < 0.1)
    if not do_sample and r.random() < 0.1:
        processors.append(DAMAGES[r.choice(sorted(DAMAGES))])
    criteria = StoppingCriteriaList([KeepingCriterion()] * (r.random() < 0.2))
    given = {"logits_processor": processors, "stopping_criteria": criteria}
    return {name: value for name, value in given.items() if value}


def _drafting(
    r: Random, name: str, target: PreTrainedModel, draft: PreTrainedModel
) -> tuple[dict[str, Any], tuple[PreTrainedModel, ...]]:
    """Choose what drafts, and how much of it."""
    options: dict[str, Any] = {"num_assistant_tokens": r.choice([1, 2, 5, 20, "auto"])}
    kind = r.choice(["draft", "draft", "draft", "other", "lookup"])
    if kind == "lookup":
        return {"prompt_lookup_num_tokens": r.randint(1, 5)}, (target,)
    other = draft if kind == "draft" else decoder_of_whisper() if name == "whisper" else _pair(_name(r))[1]
    return options | {"assistant_model": other}, (other,)
