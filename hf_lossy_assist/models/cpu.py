"""A pair of models as a CPU reads it fastest, and whether drafting pays there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..compat.caches import cache_name, new_cache
from ..compat.inputs import DraftForwardInputs
from ..compat.kernels import cpu_kernels
from ..compat.models import has_recurrent_state
from ..errors import LossyUnsupportedError
from ..theory import expected_tokens_per_round
from .quantised import check_packable, prepack, quantize_draft
from .runner import DynamicCacheRunner

KEPT = {"int4": 0.79}
"""The share of drafted tokens that are kept, by a draft's weights: int4 loses a point of what others keep."""
USUALLY_KEPT = 0.8
WIDTHS = (1, 2, 4, 6, 9)
"""Over how many tokens the target's forwards are timed."""
PAYS = 1.1
"""The least predicted gain for which drafting is advised: predictions are not better than that."""

_CONTEXT = 32
_REPEATS = 5
_NEED = {"int8": "VNNI", "int4": "AVX-512"}
"""What a CPU needs for a kernel that reads rounded weights: with AVX2 alone, int4 takes far longer than float32."""


@dataclass(frozen=True, eq=False)
class CpuRecipe:
    """A pair that was prepared for this CPU; ``str`` says what was done and found.

    Attributes
    ----------
    target
        The target to call.
    draft
        The draft to call it with; None where drafting does not pay here.
    num_assistant_tokens
        The best number of drafted tokens by what forwards cost; 0 without a draft.
    gain
        How many times as fast as the target alone the pair should be, at its best.
    kernels
        Which kernels this CPU has.
    chosen
        The kind of the best draft.
    seconds
        Of a token of each draft that was tried, and, by the number of tokens, of the target's forwards.
    notes
        What could not be tried, and why.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    num_assistant_tokens: int
    gain: float
    kernels: Mapping[str, bool]
    chosen: str
    seconds: Mapping[str | int, float]
    notes: tuple[str, ...] = ()

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of ``generate()`` and of :func:`~hf_lossy_assist.enable`; none where the target is best alone."""
        if self.draft is None:
            return {}
        return {
            "assistant_model": self.draft, "num_assistant_tokens": self.num_assistant_tokens, "lossy_mode": "lossless",
        }  # fmt: skip

    def __str__(self) -> str:
        def ms(key: str | int) -> str:
            return f"{1000 * self.seconds[key]:.3g} ms"

        has = ", ".join(name for name, there in self.kernels.items() if there)
        drafts = ", ".join(f"{name} {ms(name)}" for name in self.seconds if isinstance(name, str))
        longest = max(x for x in self.seconds if isinstance(x, int))
        lines = [
            f"This CPU: {has or 'none of ' + ', '.join(self.kernels)}; threads: {torch.get_num_threads()}.",
            f"Target: prepacked, {ms(1)} a token, {ms(longest)} for {longest} tokens.",
            f"A drafted token: {drafts}.",
            *self.notes,
        ]
        assumed = f"if {_kept(self.chosen):.0%} of drafted tokens are kept (`lossy-assist advise` measures that)"
        if self.draft is None:
            lines.append(
                f"Drafting does not pay on this CPU: at its best, the pair would be {self.gain:.2f} times as fast as "
                f"the target, {assumed}. Call the target alone. Drafts pay on CPUs with AVX-512 or AMX."
            )
        else:
            lines.append(
                f"Draft: {self.chosen}, {self.num_assistant_tokens} tokens a round: about {self.gain:.2f} times as "
                f"fast as the target alone, {assumed}."
            )
        return "\n".join(lines)


def prepare_for_cpu(target: PreTrainedModel, draft: PreTrainedModel) -> CpuRecipe:
    """Return a pair as this CPU reads it fastest, or the target alone where drafting does not pay.

    The target is prepacked. The draft is prepacked and, where the CPU has kernels for it, rounded to int8 and to int4;
    each is timed over a few forwards, and the best stays. So is the number of drafted tokens: the best of
    ``E[tokens] / seconds`` of a round, by Leviathan et al. 2023, if 80 % of drafted tokens are kept.

    The given models are unchanged, also where an error ends the call. Drop them to free their weights. While drafts are
    tried, memory holds two of them beside the given one.

    Parameters
    ----------
    target, draft
        Models on a CPU, in bfloat16, or in float32 for CPUs without bfloat16 kernels.

    Raises
    ------
    LossyValueError
        When one is no model of transformers, or neither in bfloat16 nor in float32.
    LossyUnsupportedError
        When one is not on a CPU, changed already, in bfloat16 on a CPU that has no kernels for it, or no decoder with a
        cache that rolls back.

    Examples
    --------
    >>> from hf_lossy_assist import enable, pairs, prepare_for_cpu
    >>> pair = pairs.load("arithmetic")
    >>> recipe = prepare_for_cpu(pair.target, pair.draft)
    >>> enable(recipe.target, **recipe.keywords)
    >>> str(recipe).splitlines()[0].startswith("This CPU: ")
    True
    """
    for name, model in (("target", target), ("draft", draft)):
        check_packable(name, model)
        if model.config.is_encoder_decoder or has_recurrent_state(model):
            raise LossyUnsupportedError(
                f"`{name}` has to be a decoder with a cache that rolls back, but is a {type(model).__name__}; call the "
                "target as it is"
            )
    kernels, packed, notes = cpu_kernels(), prepack(target), []
    seconds: dict[str | int, float] = {**timed(packed, WIDTHS)}
    best: tuple[float, int, str, PreTrainedModel | None] = (0.0, 0, "prepacked", None)
    rounded = {name: partial(quantize_draft, dtype=name) for name, needs in _NEED.items() if kernels[needs]}
    for name, make in {"prepacked": prepack, **rounded}.items():
        try:
            made = make(draft)
        except LossyUnsupportedError as error:  # code of a model's own may not bear rounded weights
            notes.append(f"Without a draft in {name}: {error}.")
            continue
        seconds[name] = timed(made, (1,))[1]
        best = max(best, (*best_gain(seconds, name), name, made), key=lambda found: found[0])
        del made
    gain, tokens, chosen, made = best
    pays = gain >= PAYS
    return CpuRecipe(
        packed, made if pays else None, tokens if pays else 0, gain, kernels, chosen, seconds, tuple(notes)
    )


def best_gain(seconds: Mapping[str | int, float], draft: str) -> tuple[float, int]:
    """Return the largest gain over the target alone, and the number of drafted tokens that brings it.

    Examples
    --------
    >>> gain, tokens = best_gain({1: 1.0, 9: 1.0, "int8": 0.1}, "int8")
    >>> round(gain, 2), tokens
    (2.47, 6)
    """
    widths = sorted(x for x in seconds if isinstance(x, int))
    gains = []
    for tokens in range(1, widths[-1]):
        read = float(np.interp(tokens + 1, widths, [seconds[width] for width in widths]))
        written = expected_tokens_per_round(_kept(draft), tokens)
        gains.append((written * seconds[1] / (tokens * seconds[draft] + read), tokens))
    return max(gains)


def _kept(draft: str) -> float:
    return KEPT.get(draft, USUALLY_KEPT)


@torch.inference_mode()
def timed(model: PreTrainedModel, widths: Sequence[int]) -> dict[int, float]:
    """Return the least seconds of forwards over so many tokens after a text, which take turns."""
    runner = DynamicCacheRunner(
        DraftForwardInputs(model), {cache_name(model): new_cache(model), "use_cache": True, "logits_to_keep": 1}, 0
    )
    text = torch.zeros(1, _CONTEXT, dtype=torch.long)
    runner.forward(text)
    least = dict.fromkeys(widths, float("inf"))
    for _ in range(1 + _REPEATS):  # the first also sets kernels up
        for width in widths:
            runner.rewind(_CONTEXT)
            start = time.perf_counter()
            runner.forward(text[:, :width], width)
            least[width] = min(least[width], time.perf_counter() - start)
    # Fewer tokens take no longer than more, unless another program has been in the way.
    return {width: min(x for other, x in least.items() if other >= width) for width in widths}
