"""``python -m benchmarks.draft_ends``: where each rule should end its drafts, and how fast its best length is.

The draft continues the target's own greedy answers at many places, the target reads each draft once, and every rule
says how many of its tokens it keeps. The tokens and the time of rounds with shorter drafts follow from these. Rules are
compared on the target's text, so a rule whose own text is harder to draft keeps fewer tokens than here.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from benchmarks import PairName, command
from benchmarks.cheap_drafts import answers_of
from hf_lossy_assist.acceptors import Acceptor
from hf_lossy_assist.call.config import LossyConfig
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import LoadedModels, ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.compat import CACHE
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.models.lm_head_hook import lm_head_hook

parse = LossyConfig.from_fields

LENGTH, FIRST, EVERY = 32, 4, 12
ENDS = (0.7, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.02, 0.01)
RULES = (
    "lossless,dropmatch:dropout=0.1,topk,typical,relaxed:top_n=2:delta=0.2,ensemble,near_top,lenience,fsd,fly,margin,"
    "min_p,regret,everything"
)
TIMED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
COLUMNS = {
    name: itemgetter(i)
    for i, name in enumerate(
        ("rule", "kept of 5", "best γ", "kept", "× lossless", "best end", "kept then", "× lossless's", "at 0.5")
    )
}


def main(
    prompt_file: Annotated[Path, typer.Option(help="One prompt a line: the target answers them.")],
    out: Annotated[Path, typer.Option(help="Write places and forwards' times here. If it exists, print its table.")],
    pair: PairName = "qwen-coder",
    rules: Annotated[str, typer.Option(help="Rules that decide greedily, with settings as in `--modes`.")] = RULES,
    prompts: Annotated[str, typer.Option(help="Count only these prompts, such as 1-8; all by default.")] = "",
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 96,
    threads: Threads = None,
) -> None:
    """Print each rule's best draft length, its best bound on Π q, and their tokens and speed beside lossless's best.

    The last column is the speed with drafts that end once Π q is below 0.5, after 15 tokens at most.
    """
    limit_threads(threads)
    screen = Console(soft_wrap=True)
    if not out.exists():
        loaded = ModelOptions(pair, dtype="bfloat16", prepack=True, draft_dtype="int8").load()
        _measure(loaded.asked("--prompt-file", prompt_file), rules, max_new_tokens, out, screen)
    times, *places = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    first, _, last = prompts.partition("-")
    wanted = range(int(first), int(last or first) + 1) if prompts else range(10**9)
    places = [place for place in places if place["prompt"] in wanted]
    screen.print(table(summary(Costs.of(times), places), COLUMNS, f"{pair}, {len(places)} places"))


@torch.inference_mode()
def _measure(loaded: LoadedModels, rules: str, length: int, out: Path, screen: Console) -> None:
    modes = [(mode.label, mode.rule, dict(mode.settings)) for mode in parse_modes(rules, LENGTH)]
    acceptors = {label: parse(rule, settings).rule for label, rule, settings in modes}
    seconds: dict[str, list[float]] = {"draft": []}
    places, answers = [], list(answers_of(loaded, length))
    with progress(screen) as bar:
        for number, (ids, start) in enumerate(bar.track(answers, description="drafting")):
            places += places_of(loaded, ids, start, acceptors, number + 1, seconds["draft"])
    verified = _target_times(loaded.target, answers[0][0])
    costs = {"draft": statistics.median(seconds["draft"]), "target": verified}
    out.write_text("".join(json.dumps(row) + "\n" for row in (costs, *places)), encoding="utf-8")


def places_of(
    loaded: LoadedModels, ids: Tensor, start: int, acceptors: Mapping[str, Acceptor], prompt: int, seconds: list[float]
) -> list[dict[str, Any]]:
    target, draft = loaded.target, loaded.draft
    ends = torch.tensor(target.generation_config.eos_token_id).flatten()
    caches = [DynamicCache(config=model.config) for model in (target, draft)]
    for model, cache in zip((target, draft), caches, strict=True):
        model(ids, **{CACHE: cache}, logits_to_keep=1)
    rows = []
    for place in reversed(range(start + FIRST, ids.shape[1], EVERY)):  # caches are cut from their ends
        for cache in caches:
            cache.crop(place - 1 - cache.get_seq_length())
        tokens, q = _draft(draft, ids[:, place - 1 : place], caches[1], seconds)
        read = torch.cat([ids[:, place - 1 : place], tokens], dim=1)
        kept = {}
        for label, v in _verifications(target, read, q, caches[0], acceptors):
            keep = acceptors[label].keep(v)[0]
            kept[label] = int(keep.long().cumprod(0).sum())
        of_tokens = q.softmax(-1).gather(-1, tokens[..., None])[0, :, 0]
        length = LENGTH - int(torch.isin(tokens[0], ends).long().cummax(0).values[:-1].sum())
        rows.append({"prompt": prompt, "place": place - start, "length": length, "q": of_tokens.tolist(), "kept": kept})
    return rows


def _draft(draft: PreTrainedModel, last: Tensor, cache: DynamicCache, seconds: list[float]) -> tuple[Tensor, Tensor]:
    tokens, laws = [], []
    for _ in range(LENGTH):
        begin = time.perf_counter()
        logits = draft(last, **{CACHE: cache}, logits_to_keep=1).logits[:, -1:].float()
        last = logits.argmax(-1)
        seconds.append(time.perf_counter() - begin)
        tokens.append(last)
        laws.append(logits)
    return torch.cat(tokens, dim=1), torch.cat(laws, dim=1)


def _verifications(
    target: PreTrainedModel, read: Tensor, q: Tensor, cache: DynamicCache, acceptors: Mapping[str, Acceptor]
) -> list[tuple[str, Verification]]:
    """Return the target's answer for each rule; rules with dropped heads need a forward of their own."""
    found, tokens, known = [], read[:, 1:], cache.get_seq_length()
    logits = target(read, **{CACHE: cache}).logits.float()
    plain = Verification(tokens, logits, draft_logits=q, randomness=Randomness(0))
    for label, acceptor in acceptors.items():
        if acceptor.dropped_heads is None:
            found.append((label, plain))
            continue
        cache.crop(known - cache.get_seq_length())
        hook = lm_head_hook(target, Randomness(0), acceptor.dropped_heads)
        with hook.over(LENGTH):
            both = target(read, **{CACHE: cache}).logits
        clean, dropped = hook.split(both, LENGTH)
        v = Verification(
            tokens, clean.float(), draft_logits=q, randomness=Randomness(0), dropped_logits=dropped,
            centroid_logits=dropped.mean(1, dtype=torch.float32),
        )  # fmt: skip
        found.append((label, v))
    return found


def _target_times(target: PreTrainedModel, ids: Tensor, repeats: int = 5) -> dict[str, float]:
    """Return the median seconds of a target's forward over γ + 1 tokens, all γ in turn."""
    cache, seconds = DynamicCache(config=target.config), {gamma: [] for gamma in TIMED}
    target(ids, **{CACHE: cache}, logits_to_keep=1)
    for repeat in range(repeats + 1):
        for gamma, values in seconds.items():
            begin = time.perf_counter()
            target(ids[:, : gamma + 1], **{CACHE: cache})
            if repeat:  # the first one warms up
                values.append(time.perf_counter() - begin)
            cache.crop(-(gamma + 1))
    return {str(gamma): statistics.median(values) for gamma, values in seconds.items()}


@dataclass(frozen=True)
class Costs:
    """Seconds of a round with γ drafted tokens, interpolated linearly between measured lengths."""

    draft: float
    target: Mapping[int, float]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Costs:
        return cls(row["draft"], {int(gamma): seconds for gamma, seconds in row["target"].items()})

    def rounds(self, drafted: np.ndarray) -> np.ndarray:
        return drafted * self.draft + np.interp(drafted, list(self.target), list(self.target.values()))


def summary(costs: Costs, places: list[dict[str, Any]]) -> list[list[str]]:
    product = np.cumprod([place["q"] for place in places], axis=1)
    longest = np.array([place["length"] for place in places])

    def result(rule: str, drafted: np.ndarray) -> tuple[float, float]:
        kept = np.minimum([place["kept"][rule] for place in places], drafted)
        return kept.mean(), (kept + 1).sum() / costs.rounds(drafted).sum()

    def best(rule: str, choices: Mapping[float, np.ndarray]) -> tuple[float, float, float]:
        return max(((choice, *result(rule, drafted)) for choice, drafted in choices.items()), key=itemgetter(2))

    fixed = {gamma: np.minimum(gamma, longest) for gamma in range(1, LENGTH + 1)}
    # The target still verifies the token that takes the product below the bound.
    ends: dict[float, np.ndarray] = {end: np.minimum((product >= end).sum(1) + 1, longest) for end in ENDS}
    at_half: Callable[[str], float] = lambda rule: result(rule, np.minimum(ends[0.5], 15))[1]  # noqa: E731
    lossless = {by: best("lossless", choices)[2] for by, choices in (("fixed", fixed), ("ends", ends))}
    rows = []
    for rule in places[0]["kept"]:
        gamma, kept, speed = best(rule, fixed)
        end, kept_at_end, speed_at_end = best(rule, ends)
        rows.append(
            [rule, f"{result(rule, fixed[5])[0]:.2f}", str(gamma), f"{kept:.2f}", f"{speed / lossless['fixed']:.2f}",
             f"{end:g}", f"{kept_at_end:.2f}", f"{speed_at_end / lossless['ends']:.2f}",
             f"{at_half(rule) / lossless['ends']:.2f}"]
        )  # fmt: skip
    return rows


app = command(main)

if __name__ == "__main__":
    app()
