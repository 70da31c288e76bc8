"""What an architecture is asked: calls of ``generate()``, each beside plain ``generate()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from transformers import DynamicCache, PreTrainedModel

from hf_lossy_assist import LossyError, enable
from hf_lossy_assist.compat.caches import CACHE
from tests.architectures import made
from tests.tiny_models import noisy_copy, padded, prompt
from tests.trial.drawing import attempt
from tests.trial.exact import DRAFTERS, Drafting

BAD = ("wrong", "crashed", "refused late")
TIE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Some layers compute in single precision whatever the weights are."""

NEW = {"max_new_tokens": 24, "do_sample": False, "num_beams": 1, "eos_token_id": None, "pad_token_id": 0,
       "suppress_tokens": [0], "return_dict_in_generate": True}  # fmt: skip


def _one(model: PreTrainedModel) -> dict[str, Any]:
    return {"input_ids": prompt(17)}


def _batch(model: PreTrainedModel) -> dict[str, Any]:
    return padded((3, 19))


def _prefilled(model: PreTrainedModel) -> dict[str, Any]:
    """Return a prompt and a cache that plain decoding has filled with all of it."""
    ids, cache = prompt(17), DynamicCache(config=model.config.get_text_config(decoder=True))
    model.generate(ids, **NEW | {"max_new_tokens": 1, CACHE: cache})
    return {"input_ids": ids, CACHE: cache}


Inputs = Callable[[PreTrainedModel], dict[str, Any]]
CASES: Mapping[str, tuple[Inputs, Drafting]] = {
    "draft": (_one, DRAFTERS["default length"]),
    "draft of 4": (_one, DRAFTERS["model"]),
    "look-up": (_one, DRAFTERS["look-up"]),
    "batch": (_batch, DRAFTERS["model"]),
    "batch, look-up": (_batch, DRAFTERS["look-up"]),
    "tree": (_one, DRAFTERS["tree"]),
    "tree, batch": (_batch, DRAFTERS["tree"]),
    "prefilled": (_prefilled, DRAFTERS["default length"]),
    "prefilled, look-up": (_prefilled, DRAFTERS["look-up"]),
}
"""From a case's name to its inputs and its drafter."""


def rows_of(name: str, seed: int) -> list[dict[str, Any]]:
    """Return what came of each case."""
    head = {"architecture": name, "seed": seed, "transformers": transformers.__version__}
    try:
        target = made(name, seed)
        if attempt(lambda: target.generate(prompt(), **NEW)).error is not None:
            target = target.float()  # some have no kernels for double precision
        draft = noisy_copy(target)
        enable(target)
    except Exception as error:
        return [head | {"case": "all", "outcome": "not made", "reason": _said(error)}]
    rows = []
    for case, (inputs, drafting) in CASES.items():
        outcome, reason = _outcome(target, draft, inputs, drafting)
        rows.append(head | {"case": case, "outcome": outcome, "reason": reason})
    return rows


def _outcome(target: PreTrainedModel, draft: PreTrainedModel, inputs: Inputs, drafting: Drafting) -> tuple[str, str]:
    if inputs is _prefilled and target.config.is_encoder_decoder:
        return "right", ""  # a prompt of one token is never whole in a cache
    mode = drafting(draft) | {"lossy_mode": "lossless"}
    plain = attempt(lambda: target.generate(**inputs(target), **NEW, output_logits=True), target)
    if plain.error is not None:
        return "plain fails", _said(plain.error)
    ours = attempt(lambda: target.generate(**inputs(target), **NEW, **mode), target)
    if isinstance(ours.error, LossyError):
        # A model is asked once, by forwards that are no call's.
        given = inputs(target)
        again = attempt(lambda: target.generate(**given, **NEW, **mode), target, draft)
        return ("refused late" if again.forwards else "refused"), _said(ours.error)
    if ours.error is not None:
        return "crashed", _said(ours.error)
    difference = _difference(ours.value.sequences, plain.value, TIE[target.dtype])
    return ("right", "") if difference is None else ("wrong", difference)


def _difference(ours: torch.Tensor, plain: Any, tie: float) -> str | None:
    start = plain.sequences.shape[1] - len(plain.logits)
    for row, text in enumerate(plain.sequences):
        if plain.logits[0][row].isnan().any():  # some kernels make no numbers of padding in double precision
            continue
        for i, logits in enumerate(plain.logits):
            if start + i >= ours.shape[1] or ours[row, start + i] != text[start + i]:
                best = logits[row].topk(2).values
                if (margin := float(best[0] - best[1])) < tie:
                    break
                return f"row {row}, token {i}, margin {margin:.2g}"
    return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
