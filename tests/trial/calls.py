"""Random calls of ``generate()``: families × caches × drafters × rules × processors × criteria × batch × outputs."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, StoppingCriteriaList

from hf_lossy_assist import LossyError, enabled
from hf_lossy_assist.compat import CACHE, obstacle_to_rollback
from tests.acceptors.fixtures import HEADS
from tests.golden.cases import RULES
from tests.parity import assert_same_rows
from tests.tiny_models import LENGTHS, VOCAB, padded, prompt

from .families import ATTENDING, RECURRENT, family

PROCESSORS: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    "repetition_penalty": lambda r: {"repetition_penalty": r.choice([0.8, 1.3, 2.0])},
    "no_repeat_ngram_size": lambda r: {"no_repeat_ngram_size": r.randint(1, 3)},
    "min_new_tokens": lambda r: {"min_new_tokens": r.randint(1, 12)},
    "bad_words_ids": lambda r: {"bad_words_ids": [[r.randrange(VOCAB)], [r.randrange(VOCAB), r.randrange(VOCAB)]]},
    "suppress_tokens": lambda r: {"suppress_tokens": r.sample(range(VOCAB), 20)},
    "begin_suppress_tokens": lambda r: {"begin_suppress_tokens": r.sample(range(VOCAB), 20)},
    "forced_bos_token_id": lambda r: {"forced_bos_token_id": r.randrange(VOCAB)},
    "forced_eos_token_id": lambda r: {"forced_eos_token_id": r.randrange(VOCAB)},
    "decay": lambda r: {"exponential_decay_length_penalty": (r.randint(0, 5), 1.3), "eos_token_id": 2},
    "sequence_bias": lambda r: {"sequence_bias": [[[r.randrange(VOCAB)], 4.0], [[5, 6], -3.0]]},
    "prefix_allowed": lambda r: {"prefix_allowed_tokens_fn": lambda row, ids: [*range(3 + len(ids) % 5, 60)]},
    "own": lambda r: {"logits_processor": [_never_the_last]},
    "temperature": lambda r: {"temperature": r.choice([0.3, 0.9, 2.0])},
    "top_k": lambda r: {"top_k": r.randint(1, 40)},
    "top_p": lambda r: {"top_p": r.uniform(0.2, 1)},
}
ENDS = (None, None, 2, [5, 17, 23, 40], list(range(3, 24)))
CACHES = ("", "", "", "", "dynamic", "dynamic", "static", "static", "own", "own", "continued", "quantized")
OUTPUTS = ("output_scores", "output_logits", "output_hidden_states", "output_attentions")
# Sums of many experts, and of states of one token after another, come out in another order.
TIE = 2e-3


def _never_the_last(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    # A token that is forced stays: whoever has none left to draw fails, and only some draws get there.
    forced = (scores > -torch.inf).sum(-1, keepdim=True) == 1
    return torch.where(forced, scores, scores.scatter(1, input_ids[:, -1:], -torch.inf))


def _stop_at_sum(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
    return input_ids[:, -2:].sum(-1) % 11 == 0


@dataclass(frozen=True)
class Call:
    """One random call; all of it follows from its number and the trial's seed."""

    name: str
    target: PreTrainedModel = field(repr=False)
    drafts: tuple[PreTrainedModel, ...] = field(repr=False)
    drafting: Mapping[str, Any] = field(repr=False)
    drafter: str
    rule: str
    settings: Mapping[str, Any]
    cache: str
    kwargs: Mapping[str, Any]
    prompts: Mapping[str, torch.Tensor] = field(repr=False)

    @classmethod
    def draw(cls, seed: int, number: int) -> Call:
        r = random.Random(f"{seed} {number}")
        name = _name(r)
        target, draft = family(name)
        drafting, drafts = _drafting(r, target, draft)
        rows, do_sample = r.choice([1, 1, 1, 2, 3, 4]), r.random() < 0.25
        prompts = {"input_ids": prompt(r.randint(1, 12), r.randrange(9))} if rows == 1 else padded(LENGTHS[:rows])
        kwargs = {"max_new_tokens": r.randint(1, 24), "do_sample": do_sample, "eos_token_id": r.choice(ENDS)}
        for processor in r.sample(sorted(PROCESSORS), r.choice([0, 0, 1, 2, 3])):
            kwargs |= PROCESSORS[processor](r)
        if do_sample and r.random() < 0.3:
            kwargs["num_return_sequences"] = r.randint(2, 3)
        if r.random() < 0.2:
            kwargs["stopping_criteria"] = StoppingCriteriaList([_stop_at_sum])
        kwargs |= {output: True for output in OUTPUTS if r.random() < 0.1}
        rule = "lossless" if r.random() < 0.5 else r.choice(sorted(RULES))
        settings = {"seed": r.randrange(99)}
        if r.random() < 0.2:
            settings |= r.choice([{"strict_first_n": 5}, {"budget": 0.3}, {"scope": {"start": [9], "end": [5, 6]}}])
        drafter = ", ".join(f"{key}={getattr(value, 'name_or_path', value)}" for key, value in drafting.items())
        cache = r.choice(CACHES[: None if rows == 1 else 9])
        return cls(
            f"{seed}.{number} {name}", target, drafts, drafting, drafter, rule, settings, cache, kwargs,
            prompts,
        )  # fmt: skip

    @property
    def lossy(self) -> dict[str, Any]:
        mode, own = RULES[self.rule]
        names = [mode] if isinstance(mode, str) else mode["all_of"] if isinstance(mode, dict) else mode
        heads = {name: HEADS[name](self.target, self.drafts[-1]) for name in names if name in HEADS}
        fields = {"lossy_mode": mode, "lossy_config": own | dict(self.settings), **self.drafting}
        return fields | ({"lossy_head": heads} if heads else {})

    def run(self, **more: Any) -> Any:
        """Call ``generate()``, twice in a row with one cache where that is the case."""
        torch.manual_seed(0)
        kwargs = {"pad_token_id": 0, "return_dict_in_generate": True} | dict(self.kwargs) | more
        if self.cache in ("own", "continued"):
            kwargs[CACHE] = DynamicCache(config=self.target.config)
        elif self.cache:
            kwargs["cache_implementation"] = self.cache
            kwargs["cache_config"] = {"backend": "fp8"} if self.cache == "quantized" else None
        out = self.target.generate(**self.prompts, **kwargs)
        if self.cache != "continued":
            return out
        kwargs[CACHE] = getattr(out, CACHE)
        ids = torch.cat([out.sequences, out.sequences[:, :1] * 0 + 7], dim=1)
        return self.target.generate(ids, attention_mask=torch.ones_like(ids), **kwargs)

    def check(self) -> str:
        """Return what came of the call; raise where it should have been another thing."""
        models = [*self.drafts, self.target]
        for model in models:
            obstacle_to_rollback(model, True)  # which asks a model once, by forwards that are no call's
        with warnings.catch_warnings(), enabled():
            warnings.simplefilter("ignore")
            plain = attempt(lambda: self.run(output_logits=True, output_scores=True), self.target)
            ours = attempt(lambda: self.run(**self.lossy), *models)
        assert not any(map(hooks_left_on, models)), "a hook was left"
        if isinstance(ours.error, LossyError):
            # What a first call has returned can be refused by a second one.
            assert not ours.forwards or self.cache == "continued", f"refused after {ours.forwards} forwards"
            return "refused by name"
        if plain.error is not None:
            assert ours.error is None or type(ours.error) is type(plain.error), repr(ours.error)
            return "fails as plain does" if ours.error else "works where plain fails"
        if ours.error is not None:
            raise ours.error
        return self._compare(plain.value, ours.value)

    def _compare(self, plain: Any, ours: Any) -> str:
        stats = ours.lossy_stats
        start = plain.sequences.shape[1] - len(plain.scores)
        assert ours.sequences[:, :start].equal(plain.sequences[:, :start]) or self.cache == "continued"
        assert ((ours.sequences >= 0) & (ours.sequences < VOCAB)).all()
        assert ours.sequences.shape[1] <= start + self.kwargs["max_new_tokens"] or self.cache == "continued"
        if len(ours.sequences) == 1:
            assert len(stats.trace) <= self.kwargs["max_new_tokens"]
            assert self.cache == "continued" or len(stats.trace) == ours.sequences.shape[1] - start
        if stats.lossless and not self.kwargs["do_sample"]:
            assert_same_rows(ours.sequences, SimpleNamespace(sequences=plain.sequences, logits=plain.scores), TIE)
            if ours.sequences.equal(plain.sequences) and self.cache != "continued":
                for name in ("scores", "logits", "hidden_states"):
                    _assert_same_output(getattr(ours, name), getattr(plain, name), len(ours.sequences) == 1)
            return "equal to plain"
        return "keeps its promises"


def _assert_same_output(ours: Any, plain: Any, values: bool) -> None:
    """Compare what was recorded token by token: shapes, and values where no row ends before another."""
    if isinstance(ours, tuple):
        assert len(ours) == len(plain)
        for a, b in zip(ours, plain, strict=True):
            _assert_same_output(a, b, values)
    elif ours is not None:
        assert ours.shape == plain.shape
        if values:
            torch.testing.assert_close(ours, plain, atol=2e-3, rtol=2e-3)


@dataclass(frozen=True)
class Attempt:
    """What a call returned or raised, and how many forwards it took."""

    value: Any
    error: Exception | None
    forwards: int


def attempt(call: Callable[[], Any], *models: PreTrainedModel) -> Attempt:
    """Call and catch whatever is an ``Exception``."""
    with counted(*models) as forwards:
        try:
            return Attempt(call(), None, len(forwards))
        except Exception as error:
            return Attempt(None, error, len(forwards))


@contextmanager
def counted(*models: PreTrainedModel) -> Iterator[list[int]]:
    """Count the models' forwards inside the block."""
    forwards: list[int] = []
    handles = [model.register_forward_pre_hook(lambda *_: forwards.append(1)) for model in models]
    try:
        yield forwards
    finally:
        for handle in handles:
            handle.remove()


def hooks_left_on(model: PreTrainedModel) -> list[Any]:
    """Return this package's hooks on a model; transformers leaves some of its own."""
    hooks = [
        h for module in model.modules() for x in (module._forward_pre_hooks, module._forward_hooks) for h in x.values()
    ]
    return [hook for hook in hooks if type(hook).__module__.startswith("hf_lossy_assist")]


def _name(r: random.Random) -> str:
    return r.choice(RECURRENT if r.random() < 0.15 else ATTENDING)


def _drafting(
    r: random.Random, target: PreTrainedModel, draft: PreTrainedModel
) -> tuple[dict[str, Any], tuple[PreTrainedModel, ...]]:
    """Choose what drafts, and how much of it."""
    options: dict[str, Any] = {"num_assistant_tokens": r.choice([1, 2, 5, 20, "auto"])}
    if r.random() < 0.1:
        options["assistant_confidence_threshold"] = r.random()
    if r.random() < 0.1:
        options["num_assistant_tokens_schedule"] = r.choice(["heuristic", "heuristic_transient"])
    kind = r.choice(["draft", "draft", "draft", "other", "early exit", "lookup"])
    if kind == "early exit":
        layers = r.randrange(1, target.config.num_hidden_layers)
        return options | {"assistant_early_exit": layers}, (target,)
    if kind == "lookup":
        return {"prompt_lookup_num_tokens": r.randint(1, 5)}, (target,)
    other = draft if kind == "draft" else family(_name(r))[1]
    return options | {"assistant_model": other}, (other,)
