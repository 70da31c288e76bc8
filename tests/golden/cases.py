"""The cases of the golden comparison: calls of ``generate()`` that cover every pair of axes.

Rules, greedy and sampled, one row and a padded batch, drafters, eager and compiled forwards, architectures, and what
``generate()`` offers besides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import CompileConfig, DynamicCache, GenerationConfig, StaticCache

from .worlds import CACHE, VOCAB, Listener, World, judge, verifier, world

ALL_OUTPUTS = {f"output_{name}": True for name in ("scores", "logits", "hidden_states", "attentions")}

RULES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "lossless": ("lossless", {}),
    "dropmatch": ("dropmatch", {"dropout": 0.3}),
    "dropmatch-bold": ("dropmatch", {"dropout": 0.5, "num_paths": 8}),
    "dropmatch-naive": ("dropmatch", {"criterion": "naive", "dropout": 0.3}),
    "dropmatch-naive-bold": ("dropmatch", {"criterion": "naive", "dropout": 0.6}),
    "ears": ("ears", {}),
    "ears-bold": ("ears", {"beta": 0.5}),
    "topk": ("topk", {}),
    "topk-bold": ("topk", {"k": 6, "tolerance": 4.0}),
    "typical": ("typical", {}),
    "typical-bold": ("typical", {"epsilon": 0.02, "delta": 0.1}),
    "relaxed": ("relaxed", {"top_n": 3, "delta": 0.3}),
    "relaxed-bold": ("relaxed", {"top_n": 10, "delta": 0.9}),
    "ensemble": ("ensemble", {}),
    "ensemble-bold": ("ensemble", {"weight": 0.3}),
    "judge": ("judge", {"threshold": 0.05}),
    "judge-bold": ("judge", {"threshold": 0.75}),
    "sprinter": ("sprinter", {"threshold": 0.9}),
    "sprinter-bold": ("sprinter", {"threshold": 0.5, "max_draft": 12}),
    "thresholds": ("thresholds", {"threshold_single": 0.6, "threshold_acc": 0.9}),
    "thresholds-bold": ("thresholds", {"threshold_single": 0.1, "threshold_acc": 0.5}),
    "near_top": ("near_top", {}),
    "near_top-bold": ("near_top", {"alpha": 0.9}),
    "lenience": ("lenience", {}),
    "lenience-bold": ("lenience", {"factor": 0.1}),
    "fsd": ("fsd", {}),
    "fsd-kl": ("fsd", {"threshold": 0.5, "divergence": "kl"}),
    "fsd-tv": ("fsd", {"threshold": 0.4, "divergence": "tv"}),
    "fly": ("fly", {}),
    "fly-bold": ("fly", {"window": 2, "theta": 0.1, "k": 8}),
    "judge+dropmatch": (["judge", "dropmatch"], {"judge": {"threshold": 0.05}, "dropmatch": {"dropout": 0.4}}),
    "topk+lossless": (["topk", "lossless"], {"topk": {"k": 3}}),
    "sprinter+ears": (["sprinter", "ears"], {"sprinter": {"threshold": 0.7, "max_draft": 6}, "ears": {"beta": 0.2}}),
    "all-of": ({"all_of": ["topk", "typical"]}, {"topk": {"k": 4}, "typical": {"epsilon": 0.03}}),
    "dropmatch-auto": ("dropmatch", {}),  # the last, so that the others keep their architectures
}  # fmt: skip
"""Every rule with a usual and a bolder setting. No rule goes by a default that comes from a head."""

USUAL = [name for name in RULES if not name.endswith("-bold")]
COMPILED = CompileConfig(backend="eager")


@dataclass(frozen=True, eq=False)
class Case:
    """One call, or several, whose outcome must not change.

    Attributes
    ----------
    name
        Says all of the rest.
    world, drafter, rule
        Names in :func:`~tests.golden.worlds.world`, :data:`~tests.golden.worlds.DRAFTERS` and :data:`RULES`; no rule
        where the options name it.
    rows
        Prompts in the batch, 1 or 3.
    sampling
        ``"greedy"``, ``"seeded"`` by ``lossy_config``, or ``"global"`` by ``torch.manual_seed``.
    config
        More keys of ``lossy_config``.
    options
        More keywords of ``generate()``, or a function that makes them for one call.
    call
        How it is run, see :data:`~tests.golden.worker.CALLS`.
    """

    name: str
    world: str = "llama"
    drafter: str = "assistant"
    rule: str = "lossless"
    rows: int = 1
    sampling: str = "greedy"
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Any = field(default_factory=dict)
    call: str = "generated"

    @property
    def settings(self) -> dict[str, Any]:
        seed = {"seed": 3} if self.sampling == "seeded" else {}
        return RULES[self.rule][1] | seed | dict(self.config)

    @property
    def lossy(self) -> dict[str, Any]:
        """The rule, its settings and its heads."""
        if not self.rule:
            return {}
        mode, heads = RULES[self.rule][0], world(self.world).heads
        names = [mode] if isinstance(mode, str) else mode["all_of"] if isinstance(mode, dict) else mode
        used = {name: heads[name] for name in names if name in heads}
        return {"lossy_mode": mode, "lossy_config": self.settings} | ({"lossy_head": used} if used else {})

    @property
    def decoding(self) -> dict[str, Any]:
        """Keywords of ``generate()`` apart from the rule and the drafter."""
        made, drawn, trained = world(self.world), self.sampling != "greedy", self.world == "arithmetic"
        kwargs = {"max_new_tokens": 48 if trained else 32, "do_sample": drawn, "return_dict_in_generate": True}
        # The trained pair is so sure of itself that rules differ at high temperatures only.
        kwargs |= {"temperature": 2.5 if trained else 1.0, "top_k": 0} if drawn else {}
        kwargs |= {} if trained else {"eos_token_id": None, "pad_token_id": 0}
        return made.inputs[self.rows] | kwargs | (self.options(made) if callable(self.options) else self.options)


def _rules() -> Iterator[Case]:
    """Every rule on the trained pair, and on random models in turn."""
    for name, sampling, rows in itertools.product(RULES, ("greedy", "seeded"), (1, 3)):
        yield Case(f"arithmetic/{name}/{sampling}/{rows}", "arithmetic", rule=name, sampling=sampling, rows=rows)
    architectures = itertools.cycle(("llama", "mistral", "gemma3", "gpt2", "llama"))
    for i, name in enumerate(RULES):
        for rows, sampling in zip((1, 3), ("greedy", "global")[:: 1 if i % 2 else -1], strict=True):
            architecture = next(architectures)
            yield Case(
                f"{architecture}/{name}/{sampling}/{rows}", architecture, rule=name, sampling=sampling, rows=rows
            )


def _drafters() -> Iterator[Case]:
    """Every drafter with rules that it allows, and some that it does not."""
    reading = ("lossless", "dropmatch", "ears-bold", "judge-bold", "sprinter-bold", "fly-bold", "topk-bold", "all-of")
    silent = ("lossless", "dropmatch-naive", "topk-bold", "judge-bold", "thresholds", "fly-bold", "ears", "typical",
              "relaxed-bold", "sprinter")  # fmt: skip
    drafters = {
        ("arithmetic", "lookup"): silent,
        ("gpt2", "lookup"): silent[:4],
        ("mistral", "lookup"): silent[1:4],
        ("words", "words"): reading,
        ("smaller", "assistant"): reading,
        ("larger", "assistant"): reading,
        ("llama", "own"): silent[:5],
        ("llama", "own-drawn"): ("lossless", "dropmatch", "ears-bold", "fsd-kl"),
        ("block", "block"): ("lossless", "ears", "topk-bold"),
        ("next tokens", "next tokens"): ("lossless", "ears", "topk-bold"),
        ("llama", "own instance"): ("lossless",),
        # Without sprinter: half precision rounds by how many tokens the draft reads at once, which is its own choice.
        ("half", "assistant"): reading[:4],
        ("half draft", "assistant"): reading[:4],
        ("llama", "none"): ("lossless",),
    }
    for (where, drafter), rules in drafters.items():
        for i, rule in enumerate(rules):
            for rows in (1, 3):
                sampling = "seeded" if (i + rows // 2) % 2 else "greedy"
                name = f"{drafter}/{where}/{rule}/{sampling}/{rows}"
                yield Case(name, where, drafter, rule, rows, sampling)


def _heads() -> Iterator[Case]:
    """Heads that read other states than the usual ones."""
    for reads in itertools.product(("target", "draft", "both"), ("previous", "draft", "both")):
        rows, sampling = (1, "greedy") if reads[0] == "draft" else (3, "seeded")
        for rule in ("judge-bold", "judge+dropmatch"):
            yield Case(f"heads/{', '.join(reads)}/{rule}/{sampling}/{rows}", rule=rule, rows=rows, sampling=sampling,
                       options=lambda w, r=reads: {"lossy_head": {"judge": judge(w.target, w.draft, *r)}})  # fmt: skip
    for rule, rows, sampling in itertools.product(("sprinter", "sprinter+ears"), (1, 3), ("greedy", "seeded")):
        yield Case(f"heads/token/{rule}/{sampling}/{rows}", rule=rule, rows=rows, sampling=sampling,
                   options=lambda w: {"lossy_head": {"sprinter": verifier(w.target, w.draft, "token")}})  # fmt: skip


def _encoders() -> Iterator[Case]:
    rules = ("lossless", "dropmatch", "ears-bold", "topk-bold", "fly-bold", "sprinter")
    for where, (i, rule), rows in itertools.product(("t5", "bart"), enumerate(rules), (1, 3)):
        sampling = "seeded" if (i + rows // 2) % 2 else "greedy"
        yield Case(f"{where}/{rule}/{sampling}/{rows}", where, rule=rule, rows=rows, sampling=sampling)
    yield Case("t5/outputs", "t5", rows=1, options=ALL_OUTPUTS)
    yield Case("t5/outputs/3", "t5", rows=3, options=ALL_OUTPUTS)


def _compiled() -> Iterator[Case]:
    compile = {"config": {"compile": True}}
    options = {"compile_config": COMPILED}
    for i, rule in enumerate(USUAL):
        sampling = ("seeded", "greedy")[i % 2]
        yield Case(f"compiled/arithmetic/{rule}/{sampling}", "arithmetic", rule=rule, sampling=sampling,
                   options=options, **compile)  # fmt: skip
    for rule, sampling in itertools.product(("lossless", "dropmatch", "judge-bold"), ("greedy", "global")):
        yield Case(f"compiled/llama/{rule}/{sampling}", rule=rule, sampling=sampling, options=options, **compile)
    for where in ("mistral", "gemma3", "gpt2"):
        yield Case(f"compiled/{where}/lookup", where, "lookup", "dropmatch-naive", options=options, **compile)
    yield Case("compiled/lookup", "arithmetic", "lookup", "topk", options=options, **compile)
    yield Case("compiled/confidence", options=options | {"assistant_confidence_threshold": 0.3}, **compile)
    yield Case("compiled/outputs", options=options | {"output_scores": True, "output_logits": True}, **compile)
    yield Case("compiled/processors", options=options | {"repetition_penalty": 1.3}, **compile)
    yield Case("compiled/falls back: rows", rows=3, options=options, **compile)
    yield Case("compiled/falls back: states", options=options | {"output_hidden_states": True}, **compile)
    yield Case("compiled/padded", options=lambda w: _second(w) | options, **compile)
    yield Case("compiled/falls back: cache", **compile, options=lambda w: options | {
        CACHE: DynamicCache(config=w.target.config)})  # fmt: skip
    yield Case("compiled/falls back: backend", "mistral", options={"compile_config": CompileConfig(_broken)}, **compile)
    yield Case("compiled/twice", options=options, call="twice", **compile)
    yield Case("static", options={"cache_implementation": "static"})
    yield Case("static/own", options=lambda w: {CACHE: StaticCache(w.target.config, max_cache_len=39)})
    yield Case("static/own, sliding", "mistral",
               options=lambda w: {CACHE: StaticCache(w.target.config, max_cache_len=39)})  # fmt: skip
    yield Case("static/rows", rows=3, options={"cache_implementation": "static"})


def _broken(graph: Any, inputs: Any, **options: Any) -> Any:
    raise RuntimeError("no compiler here")


def _second(made: World) -> dict[str, torch.Tensor]:
    """The row of the batch that has the most padding, alone."""
    return {name: value[1:2] for name, value in made.inputs[3].items()}


def _limits() -> Iterator[Case]:
    bounds = {
        "strict": {"strict_first_n": 9},
        "budget": {"budget": 0.2},
        "scope": {"scope": {"start": [40], "end": 9}},
        "all": {"strict_first_n": 4, "budget": 0.5, "scope": {"start": 7, "end": 63}},
    }
    for (bound, config), rule, rows in itertools.product(
        bounds.items(), ("topk-bold", "sprinter-bold", "dropmatch-bold"), (1, 3)
    ):
        yield Case(f"limits/{bound}/{rule}/{rows}", rule=rule, rows=rows, sampling="seeded", config=config)
    marks = {"scope": {"start": "Answer:", "end": "The answer"}}
    for rows in (1, 3):
        yield Case(f"limits/texts/{rows}", "arithmetic", rule="relaxed-bold", rows=rows, config=marks,
                   options=lambda w: {"tokenizer": w.tokenizers[0]})  # fmt: skip


def _windows() -> Iterator[Case]:
    options = {
        "1": {"num_assistant_tokens": 1},
        "17": {"num_assistant_tokens": 17},
        "heuristic": {"num_assistant_tokens_schedule": "heuristic"},
        "transient": {"num_assistant_tokens_schedule": "heuristic_transient", "num_assistant_tokens": 3},
        "confidence": {"assistant_confidence_threshold": 0.4, "num_assistant_tokens": 8},
        "confidence, heuristic": {
            "assistant_confidence_threshold": 0.4, "num_assistant_tokens_schedule": "heuristic",
        },
    }  # fmt: skip
    for (name, more), rows in itertools.product(options.items(), (1, 3)):
        yield Case(f"windows/{name}/{rows}", "arithmetic", rule="relaxed", rows=rows, options=more)
        yield Case(f"windows/{name}/llama/{rows}", rule="topk", rows=rows, sampling="seeded", options=more)


def _stop_at_sum(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
    return input_ids[:, -2:].sum(-1) % 13 == 0


def _forbid_last(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Look at each row's prefix and its length."""
    forbidden = torch.arange(VOCAB)[None] % 7 == input_ids.shape[1] % 7
    return scores.masked_fill(forbidden | (torch.arange(VOCAB)[None] == input_ids[:, -1:]), -torch.inf)


def _generation() -> Iterator[Case]:
    """What ``generate()`` has besides, with one rule or another."""
    ends = {"eos_token_id": [5, 17, 23, 40], "pad_token_id": 0}
    both = {
        "ends": ends,
        "ends, long drafts": ends | {"num_assistant_tokens": 12},
        "max length": {"max_length": 20, "max_new_tokens": None, "num_assistant_tokens": 8},
        "one token": {"max_new_tokens": 1},
        "two tokens": {"max_new_tokens": 2},
        "minimum": ends | {"min_new_tokens": 12},
        "repetition": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        "own processor": {"logits_processor": [_forbid_last]},
        "decay": {"exponential_decay_length_penalty": (5, 1.5), "eos_token_id": 2},
        "criterion": {"stopping_criteria": [_stop_at_sum]},
        "forced end": {"forced_eos_token_id": 5, "eos_token_id": 5},
        "suppressed": {"suppress_tokens": list(range(3, 30)), "begin_suppress_tokens": [40]},
        "outputs": {"output_scores": True, "output_logits": True, "repetition_penalty": 1.2} | ends,
        "bare": {"return_dict_in_generate": False},
    }
    for (name, options), rows in itertools.product(both.items(), (1, 3)):
        yield Case(f"generation/{name}/lossless/{rows}", rows=rows, options=options)
        yield Case(f"generation/{name}/topk/{rows}", rule="topk-bold", rows=rows, sampling="seeded", options=options)
        if name in ("ends", "max length", "minimum", "repetition", "criterion", "two tokens"):
            yield Case(f"generation/{name}/sprinter/{rows}", rule="sprinter-bold", rows=rows, options=options)
    drawn = {
        "warpers": {"top_p": 0.8, "top_k": 20, "temperature": 0.7},
        "several": {"num_return_sequences": 3},
        "cut-offs": {"min_p": 0.05, "epsilon_cutoff": 0.01},
    }
    for (name, options), rule, rows in itertools.product(drawn.items(), ("lossless", "ears-bold"), (1, 3)):
        yield Case(f"generation/{name}/{rule}/{rows}", rule=rule, sampling="seeded", rows=rows, options=options)
    yield Case("generation/several/sprinter", rule="sprinter-bold", sampling="seeded", options=drawn["several"])
    stops = {"stop_strings": ["so", "20"], "max_new_tokens": 48}
    for rule, rows in itertools.product(("lossless", "sprinter-bold", "dropmatch-naive"), (1, 3)):
        yield Case(f"generation/stop strings/{rule}/{rows}", "arithmetic", rule=rule, rows=rows,
                   options=lambda w: stops | {"tokenizer": w.tokenizers[0]})  # fmt: skip
        yield Case(f"generation/all outputs/{rule}/{rows}", "llama-eager", rule=rule, rows=rows, options=ALL_OUTPUTS)
        yield Case(f"generation/long/{rule}/{rows}", "arithmetic", rule=rule, rows=rows, options={"max_new_tokens": 90})
    for rule in ("lossless", "sprinter-bold", "topk-bold"):
        for rows in (1, 3):
            yield Case(f"generation/streamer/{rule}/{rows}", rule=rule, rows=rows,
                       options=lambda w: {"streamer": Listener()} | ends)  # fmt: skip
        yield Case(f"generation/cache/{rule}", rule=rule, call="continued")
        yield Case(f"generation/cache/{rule}/mistral", "mistral", rule=rule, call="continued", sampling="seeded")
        yield Case(f"generation/twice/{rule}", "arithmetic", rule=rule, call="twice")
    for where, rule in itertools.product(("llama", "mistral", "gpt2"), ("lossless", "sprinter-bold", "dropmatch")):
        yield Case(f"generation/padded row/{where}/{rule}", where, rule=rule, options=_second, sampling="seeded")
    for rule, rows in itertools.product(("judge-bold", "sprinter"), (1, 3)):
        yield Case(f"generation/very long/{rule}/{rows}", rule=rule, rows=rows, options={"max_new_tokens": 275})
        yield Case(f"generation/no mask/{rule}/{rows}", rule=rule, rows=rows, options={"attention_mask": None})
    for rule, rows in itertools.product(("dropmatch", "dropmatch-naive", "judge+dropmatch"), (1, 3)):
        yield Case(f"generation/repetition/{rule}/{rows}", rule=rule, rows=rows, options=both["repetition"])
    for rule, config in {"ensemble": {"weight": 1.0}, "fsd": {"threshold": 0}, "topk": {"k": 1},
                         "dropmatch": {"dropout": 0.0}}.items():  # fmt: skip
        yield Case(f"generation/lossless at/{rule}/greedy", rule=rule, rows=3, config=config)
        yield Case(f"generation/lossless at/{rule}/seeded", rule=rule, sampling="seeded", config=config)
    yield Case("generation/bare/lookup/3", "arithmetic", "lookup", rows=3, options=both["bare"])
    yield Case("generation/states/mistral", "mistral", options={"output_hidden_states": True})
    yield Case("generation/custom_generate", rule="topk", call="by_repository")
    yield Case("generation/recall", "arithmetic", rule="judge", config={"threshold": None, "recall": 0.9})
    few = {"max_new_tokens": 9, "num_assistant_tokens": 2}
    fields = few | {"lossy_mode": "topk", "lossy_config": {"k": 9}}
    for name, rule, options in (("configuration", "topk", few), ("fields", "", fields)):
        yield Case(f"generation/{name}", rule=rule,
                   options=lambda w, o=options: {"generation_config": GenerationConfig(**o)})  # fmt: skip


def _refused() -> Iterator[Case]:
    cases = {
        "beams": {"options": {"num_beams": 2}},
        "no cache": {"options": {"use_cache": False}},
        "lossy": {"rule": "topk", "config": {"require_lossless": True}},
        "outputs": {"rule": "sprinter", "options": {"output_scores": True}},
        "cache of rows": {"rows": 3, "options": lambda w: {CACHE: DynamicCache(config=w.target.config)}},
        "key": {"config": {"kk": 3}},
        "value": {"rule": "topk", "config": {"k": 0}},
        "embeddings": {"options": lambda w: {"inputs_embeds": torch.zeros(1, 3, 32)}},
        "head": {"rule": "judge", "options": {"lossy_head": None}},
    }
    for name, more in cases.items():
        yield Case(f"refused/{name}", **more)


def _hooks() -> Iterator[Case]:
    for i, rule in enumerate(USUAL):
        sampling = ("greedy", "seeded")[i % 2]
        yield Case(f"hook/arithmetic/{rule}/{sampling}", "arithmetic", rule=rule, sampling=sampling, call="hooked")
    for i, rule in enumerate(rule for rule in RULES if rule not in USUAL):
        sampling = ("global", "greedy")[i % 2]
        yield Case(f"hook/llama/{rule}/{sampling}", rule=rule, sampling=sampling, call="hooked")
    for rule, where in itertools.product(("lossless", "dropmatch-naive", "judge-bold"), ("mistral", "gemma3", "gpt2")):
        yield Case(f"hook/{where}/{rule}", where, rule=rule, call="hooked")
    for rule in ("lossless", "topk-bold", "dropmatch-naive", "ears"):
        yield Case(f"hook/lookup/{rule}", "arithmetic", "lookup", rule, sampling="seeded", call="hooked")
    yield Case("hook/limits", rule="topk-bold", config={"budget": 0.2, "strict_first_n": 5}, call="hooked")
    yield Case("hook/ends", rule="topk-bold", options={"eos_token_id": [5, 17, 23]}, call="hooked")
    yield Case("hook/processors", rule="topk-bold", options={"repetition_penalty": 1.3}, call="hooked")
    yield Case("hook/t5", "t5", rule="topk-bold", call="hooked")


GROUPS = (_rules, _drafters, _heads, _encoders, _compiled, _limits, _windows, _generation, _refused, _hooks)


def all_cases() -> dict[str, Case]:
    """Return the cases by name."""
    cases = [case for group in GROUPS for case in group()]
    named = {case.name: case for case in cases}
    if len(named) != len(cases):
        raise ValueError("names of cases have to be unique")
    return named
