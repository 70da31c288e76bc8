"""Runs the golden cases in one tree.

``python -m golden.worker TREE OUT [NAME ...]`` writes a line of JSON per case: tokens, every statistic that does not
depend on the time, sums of the recorded outputs, or the error.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import hf_lossy_assist
from hf_lossy_assist import LossyVerification

from .cases import Case, all_cases
from .worlds import CACHE, DRAFTERS, Listener, World, world

SECONDS_PER_CASE = 60
SEPARATE = ("seconds", "records", "flops", "head_calls")
OUTPUTS = ("scores", "logits", "hidden_states", "attentions", "decoder_hidden_states", "decoder_attentions",
           "cross_attentions", "encoder_hidden_states", "encoder_attentions")  # fmt: skip


def generated(case: Case) -> dict[str, Any]:
    """Record one call of ``generate()``."""
    made = world(case.world)
    kwargs = DRAFTERS[case.drafter](made) | case.lossy | case.decoding
    torch.manual_seed(11)
    return record(made.target.generate(**kwargs), made, kwargs)


def hooked(case: Case) -> dict[str, Any]:
    """Record one call of stock's ``generate()`` with the rule as a logits processor."""
    made = world(case.world)
    lossy = case.lossy
    head = {"lossy_head": lossy["lossy_head"]} if "lossy_head" in lossy else {}
    ours = {"assistant_model": made.draft} if case.drafter == "assistant" else {}
    torch.manual_seed(11)
    with LossyVerification(lossy["lossy_mode"], made.target, **ours, **head, **lossy["lossy_config"]) as hook:
        kwargs = DRAFTERS[case.drafter](made) | case.decoding
        out = made.target.generate(**kwargs, logits_processor=[hook, *kwargs.pop("logits_processor", [])])
    return {"sequences": out.sequences.tolist(), "stats": plain(hook.stats)}


def continued(case: Case) -> dict[str, Any]:
    """Record two calls, the second of which goes on with the first one's cache."""
    made = world(case.world)
    kwargs = DRAFTERS[case.drafter](made) | case.lossy | case.decoding
    torch.manual_seed(11)
    first = made.target.generate(**kwargs)
    text = {"input_ids": first.sequences, "attention_mask": torch.ones_like(first.sequences)}
    more = {CACHE: getattr(first, CACHE)}
    second = made.target.generate(**(kwargs | text | more))
    return {"first": record(first, made, kwargs), "second": record(second, made, kwargs)}


def twice(case: Case) -> dict[str, Any]:
    """Record two equal calls: the second finds what the first has left behind."""
    return {"first": generated(case), "second": generated(case)}


def by_repository(case: Case) -> dict[str, Any]:
    """Record one call through the ``custom_generate`` repository of the tree, with the package not enabled."""
    made = world(case.world)
    folder = Path(hf_lossy_assist.__file__).parents[1] / "hub_cards" / "lossy-assist-generate"
    kwargs = DRAFTERS[case.drafter](made) | case.lossy | case.decoding
    torch.manual_seed(11)
    out = made.target.generate(**kwargs, custom_generate=str(folder), trust_remote_code=True)
    return record(out, made, kwargs)


CALLS: Mapping[str, Callable[[Case], dict[str, Any]]] = {
    "generated": generated, "hooked": hooked, "continued": continued, "twice": twice,
    "by_repository": by_repository,
}  # fmt: skip


def run(case: Case) -> dict[str, Any]:
    """Return what became of a case."""
    try:
        return CALLS[case.call](case)
    except Exception as error:
        return {"error": type(error).__name__, "message": re.sub(r"0x[0-9a-f]+|/\S+/", "…", str(error))}


def record(out: Any, made: World, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an output says, as plain values."""
    if isinstance(out, torch.Tensor):
        return {"sequences": out.tolist(), "stats": plain(hf_lossy_assist.last_stats(made.target))}
    stats = getattr(out, "lossy_stats", None)
    values = {"type": type(out).__name__, "sequences": out.sequences.tolist(), "stats": plain(stats)}
    values |= {name: summary(value) for name in OUTPUTS if (value := getattr(out, name, None)) is not None}
    if (cache := getattr(out, CACHE, None)) is not None:
        values["cache"] = {"type": type(cache).__name__, "length": int(cache.get_seq_length())}
    if isinstance(listener := kwargs.get("streamer"), Listener):
        tokens = list(itertools.chain(*listener.portions))
        portions = list(map(len, listener.portions))
        values["streamer"] = {"tokens": tokens, "portions": portions, "ended": listener.ended}
    return values


def plain(value: Any) -> Any:
    """Return statistics without those that depend on the time, or say once more what tokens and traces do."""
    if dataclasses.is_dataclass(value):
        names = [x.name for x in dataclasses.fields(value) if x.name not in SEPARATE]
        return {name: plain(getattr(value, name)) for name in dict.fromkeys((*names, "trace")) if hasattr(value, name)}
    if isinstance(value, Mapping):
        return {str(name): plain(x) for name, x in value.items()}
    return [plain(x) for x in value] if isinstance(value, list | tuple) else value


def summary(outputs: Any) -> dict[str, Any]:
    """Return shapes and sums of every tensor of a nested tuple; entries that are not finite are counted apart."""
    tensors = list(_tensors(outputs))
    finite = [x.double().where(x.isfinite(), torch.zeros((), dtype=torch.double)) for x in tensors]
    waves = [torch.arange(x.numel(), dtype=torch.double).cos() for x in tensors]
    return {
        "shapes": ["×".join(map(str, x.shape)) for x in tensors],
        "infinite": [int((~x.isfinite()).sum()) for x in tensors],
        "sum": [float(x.sum()) for x in finite],
        "largest": [float(x.abs().max()) for x in finite],
        "wave": [float(x.flatten() @ y) for x, y in zip(finite, waves, strict=True)],
    }


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for x in value:
            yield from _tensors(x)


def _too_long(*signal_and_frame: Any) -> None:
    raise TimeoutError(f"not done after {SECONDS_PER_CASE} s")


def main(tree: str, out: str, *names: str) -> None:
    """Run cases in the tree that Python imports from; refuse to run in another than ``tree``."""
    found = Path(hf_lossy_assist.__file__).resolve()
    if Path(tree).resolve() not in found.parents:
        raise SystemExit(f"hf_lossy_assist comes from {found}, not from {tree}")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    cases = all_cases()
    with open(out, "w", encoding="utf-8") as lines, hf_lossy_assist.enabled():
        for name in names or cases:
            signal.alarm(SECONDS_PER_CASE)
            outcome = run(cases[name])
            signal.alarm(0)
            lines.write(json.dumps([name, outcome]) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
