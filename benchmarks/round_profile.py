"""``python -m benchmarks.round_profile``: where a round spends its time outside both models' forward passes.

A profiler runs between the forward passes of target and draft, in this package's loop and in transformers' own. The
profiler slows every call, so use the table to see which operations there are, and
`evaluate --set stages=true` for the time of a round.
"""

from __future__ import annotations

import cProfile
import pstats
import re
from collections import defaultdict
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from transformers import PreTrainedModel

import hf_lossy_assist
from benchmarks import PairName, command
from hf_lossy_assist import pairs
from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.evaluation.tables import table

COLUMNS = {name: itemgetter(i) for i, name in enumerate(("operation", "where", "calls per round", "µs per round"))}
_PACKAGE = Path(hf_lossy_assist.__file__).parent
_LIBRARY = re.compile(r"site-packages/(\w+)/")


def place(file: str, name: str) -> tuple[str, str]:
    """Return where a profiled function is, and its name."""
    if file == "~":  # written in C
        owner = re.match(r"<(?:built-in )?method '?([\w.]+)'?(?: of '([\w.]+)' objects)?>", name)
        torch_s = "torch" in name or "Tensor" in name
        return "torch, in C" if torch_s else "Python, in C", owner[1].rpartition(".")[2] if owner else name
    if Path(file).is_relative_to(_PACKAGE):
        return Path(file).relative_to(_PACKAGE).as_posix(), name
    library = _LIBRARY.search(file)
    return library[1] if library else "Python", name


class BetweenForwards:
    """A profiler that stops while one of the models computes."""

    def __init__(self, *models: PreTrainedModel) -> None:
        self.profile = cProfile.Profile()
        self.forwards = 0
        self._models = models
        self._hooks: list[Any] = []

    def __enter__(self) -> BetweenForwards:
        for model in self._models:
            self._hooks.append(model.register_forward_pre_hook(self._stop))
            self._hooks.append(model.register_forward_hook(self._go_on))
        self.profile.enable()
        return self

    def __exit__(self, *error: object) -> None:
        self.profile.disable()
        for hook in self._hooks:
            hook.remove()

    def _stop(self, *_: object) -> None:
        self.profile.disable()

    def _go_on(self, model: PreTrainedModel, *_: object) -> None:
        self.forwards += model is self._models[0]
        self.profile.enable()

    def operations(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Return each operation's calls and its own seconds."""
        found: dict[tuple[str, str], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for (file, _, name), (_, calls, seconds, *_) in pstats.Stats(self.profile).stats.items():  # type: ignore[attr-defined]
            key = place(file, name)
            found[key] = found[key][0] + calls, found[key][1] + seconds
        return found


def main(
    pair: PairName = "arithmetic",
    mode: Annotated[str, typer.Option(help="A `lossy_mode`, or `stock`: transformers' own loop.")] = "lossless",
    gamma: Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")] = 5,
    prompts: Annotated[int, typer.Option(min=1, help="Problems of the pair's task.")] = 16,
    top: Annotated[int, typer.Option(min=1, help="Operations to print.")] = 30,
    threads: Threads = 1,
) -> None:
    """Print the calls and the microseconds of each operation outside the forward passes, per round."""
    limit_threads(threads)
    models = pairs.load(pair)
    kwargs: dict[str, Any] = {"assistant_model": models.draft, "max_new_tokens": 160, "do_sample": False}
    if mode == "stock":  # transformers reads these from the draft
        of_draft = models.draft.generation_config
        of_draft.num_assistant_tokens, of_draft.num_assistant_tokens_schedule = gamma, "constant"
        of_draft.assistant_confidence_threshold = 0
    else:
        kwargs |= {"lossy_mode": mode, "num_assistant_tokens": gamma}
    examples = models.task.examples("test", prompts + 2)
    inputs = [{"input_ids": torch.tensor([models.task.encode(one, models.tokenizer)])} for one in examples]
    with hf_lossy_assist.enabled(models.target):
        for one in inputs[:2]:
            models.target.generate(**one, **kwargs)
        with BetweenForwards(models.target, models.draft) as between, torch.inference_mode():
            for one in inputs[2:]:
                models.target.generate(**one, **kwargs)
    operations = sorted(between.operations().items(), key=lambda entry: -entry[1][1])
    rounds = between.forwards
    per_round = [(name, where, f"{n / rounds:.1f}", f"{1e6 * s / rounds:.0f}") for (where, name), (n, s) in operations]
    by_place: dict[str, float] = defaultdict(float)
    for (where, _), (_, seconds) in operations:
        by_place[where] += 1e6 * seconds / rounds
    title = f"{mode}, γ = {gamma}: {rounds} rounds"
    Console().print(table(per_round[:top], COLUMNS, title))
    for where, microseconds in sorted(by_place.items(), key=lambda entry: -entry[1])[:top]:
        Console().print(f"{microseconds:6.0f} µs  {where}")
    Console().print(f"{sum(by_place.values()):6.0f} µs  per round in all")


app = command(main)

if __name__ == "__main__":
    app()
