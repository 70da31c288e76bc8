"""The keywords of ``enable()`` and ``generate()`` as types, for editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

LossyMode = Literal[
    "lossless", "dropmatch", "ears", "topk", "typical", "relaxed", "ensemble", "thresholds", "near_top", "lenience",
    "fsd", "fly", "cactus", "margin", "regret", "judge", "sprinter", "min_p",
]  # fmt: skip
"""The rules of this package."""


class LossyKeywords(TypedDict, total=False):
    """What :func:`~hf_lossy_assist.enable` takes, and ``generate()`` of an enabled model besides its own keywords.

    Examples
    --------
    >>> settings: LossyKeywords = {"lossy_mode": "min_p", "lossy_config": {"tau": 0.5}, "num_assistant_tokens": 5}
    """

    lossy_mode: LossyMode | str | list[str] | dict[Literal["all_of"], list[str]] | None
    lossy_config: Mapping[str, Any] | None
    lossy_head: Any  # a folder, an id on the Hub, a head, or these by rule
    assistant_model: Any
    candidate_generator: Any
    assistant_early_exit: int | None
    prompt_lookup_num_tokens: int | None
    use_mtp: bool | None
    speculation_type: Any
    tokenizer: Any
    assistant_tokenizer: Any
    num_assistant_tokens: int | Literal["auto"] | None
    num_assistant_tokens_schedule: Literal["constant", "heuristic", "heuristic_transient"] | None
    assistant_confidence_threshold: float | None
