"""Random calls of ``generate()``: fields that can work, fields that can't, and what comes of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st

from hf_lossy_assist.acceptors import REGISTRY
from tests.acceptors.fixtures import HEADS as HEADS_FOR
from tests.acceptors.strategies import settings_for
from tests.tiny_models import VOCAB, noisy_copy, tiny

TARGET = tiny("llama")
DRAFT = noisy_copy(TARGET, 0.05)
HEADS = {rule: head(TARGET, DRAFT) for rule, head in HEADS_FOR.items()}

# Explaining a failure takes longer than all else.
ABUSE = settings(derandomize=True, deadline=None, database=None, phases=[Phase.explicit, Phase.generate, Phase.shrink])

_share = st.floats(0, 1)

RUN_SETTINGS: dict[str, st.SearchStrategy] = {
    "seed": st.none() | st.integers(0, 2**63 - 1),
    "strict_first_n": st.none() | st.integers(0, 40),
    "budget": st.none() | _share,
    "scope": st.none()
    | st.fixed_dictionaries({"start": st.integers(0, 63), "end": st.lists(st.integers(0, 63), min_size=1, max_size=3)}),
    "require_lossless": st.none() | st.just(False),
}  # fmt: skip

_token = st.integers(0, VOCAB - 1)
GENERATION: dict[str, st.SearchStrategy] = {
    "temperature": st.floats(0.1, 5),
    "top_k": st.integers(0, 99),
    "top_p": st.floats(0.05, 1),
    "min_p": _share,
    "typical_p": st.floats(0.05, 0.95),
    "epsilon_cutoff": st.floats(0, 0.5),
    "repetition_penalty": st.floats(0.5, 3),
    "no_repeat_ngram_size": st.integers(0, 3),
    "eos_token_id": _token | st.lists(_token, min_size=1, max_size=20),
    "min_new_tokens": st.integers(0, 20),
    "bad_words_ids": st.lists(st.lists(_token, min_size=1, max_size=3), min_size=1, max_size=3),
    "suppress_tokens": st.lists(_token, min_size=1, max_size=50),
    "begin_suppress_tokens": st.lists(_token, min_size=1, max_size=5),
    "forced_bos_token_id": _token,
    "forced_eos_token_id": _token,
    "exponential_decay_length_penalty": st.tuples(st.integers(0, 5), st.floats(1.01, 2)),
    "sequence_bias": st.lists(st.tuples(st.lists(_token, min_size=1, max_size=2), st.floats(-5, 5)), min_size=1).map(
        lambda pairs: [[tokens, float(bias)] for tokens, bias in pairs]
    ),
    "renormalize_logits": st.booleans(),
    "remove_invalid_values": st.booleans(),
    "return_dict_in_generate": st.booleans(),
    "output_scores": st.booleans(),
    "output_logits": st.booleans(),
    "assistant_confidence_threshold": _share,
    "num_assistant_tokens_schedule": st.sampled_from(["constant", "heuristic", "heuristic_transient"]),
}
"""Settings of transformers that work with every rule."""

JUNK = st.sampled_from(
    [-1, 0, 3, 2**63, 10**400, -1e300, 0.5, float("nan"), float("inf"), True, "", "x", b"topk", "js", None, (), [],
     [None], [[]], {}, {"a": 1}, {"start": []}, {1, 2}, object(), torch.tensor([1, 2]), torch.nan, int, 1j]
)  # fmt: skip
"""Values of every kind: wrong types, out of range, empty, unhashable, with comparisons of their own."""


@dataclass(frozen=True)
class Outcome:
    """What came out of a call: a text, or an error."""

    text: list[list[int]] | None
    error: BaseException | None
    forwards: int

    @property
    def worked(self) -> bool:
        return self.error is None


def attempt(call: Callable[..., Any], **kwargs: Any) -> Outcome:
    """Call and catch whatever is an ``Exception``; count the models' forwards."""
    forwards: list[int] = []
    handles = [model.register_forward_pre_hook(lambda *_: forwards.append(1)) for model in (TARGET, DRAFT)]
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = call(**kwargs)
    except Exception as error:  # what may come out is the question here
        return Outcome(None, error, len(forwards))
    finally:
        for handle in handles:
            handle.remove()
    return Outcome((out if isinstance(out, torch.Tensor) else out.sequences).tolist(), None, len(forwards))


def some(strategies: dict[str, st.SearchStrategy], at_most: int = 4) -> st.SearchStrategy[dict[str, Any]]:
    """Choose a few of the fields, and a value for each."""
    names = st.lists(st.sampled_from(list(strategies)), unique=True, max_size=at_most) if strategies else st.just([])
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: strategies[name] for name in chosen}))


@st.composite
def lossy_fields(draw: st.DrawFn, rules: tuple[str, ...] = tuple(REGISTRY)) -> dict[str, Any]:
    """Draw fields that can work: a rule or several, settings, heads."""
    names = draw(st.lists(st.sampled_from(rules), min_size=1, max_size=3, unique=True))
    kind = draw(st.sampled_from(["one", "any", "all"]))
    if kind == "all" and "sprinter" in names:
        kind = "any"
    if "sprinter" in names:
        names = ["sprinter", *(name for name in names if name != "sprinter")]
    if kind == "one":
        names = names[:1]
    own = {name: draw(settings_for(REGISTRY[name])) for name in names}
    config = draw(some(RUN_SETTINGS)) | (own[names[0]] if kind == "one" else own)
    heads = {name: HEADS[name] for name in names if name in HEADS}
    mode = {"one": names[0], "any": names, "all": {"all_of": names}}[kind]
    fields = {"lossy_mode": mode, "lossy_config": config}
    return fields | ({"lossy_head": heads} if heads else {})


def names_of(mode: Any) -> list[str]:
    return [mode] if isinstance(mode, str) else list(mode["all_of"] if isinstance(mode, dict) else mode)
