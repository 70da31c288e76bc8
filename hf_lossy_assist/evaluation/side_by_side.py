"""Several modes on one prompt, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..core.token_records import TokenRecord
from ..inspection.page import InspectedText, InspectionPage
from ..pairs import Pair
from .modes import DecodingMode
from .requests import PromptBatch, run_request


def compare(
    pair: Pair,
    modes: Sequence[DecodingMode],
    batch: PromptBatch,
    max_new_tokens: int = 100,
    *,
    prompt: str = "",
    right: Callable[[list[int]], bool] | None = None,
) -> InspectionPage:
    """Answer a batch of one prompt in every mode, and return the page of the texts.

    Each mode answers twice with equal random numbers: once with inspection, once for its speed. Where ``right`` judges
    the tokens of an answer, the page says so.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> from hf_lossy_assist.evaluation.modes import parse_modes
    >>> from hf_lossy_assist.evaluation.requests import batches_of
    >>> pair = pairs.load("arithmetic")
    >>> batch, = batches_of(pair.tokenizer(["Question: Ada has 3 pens."])["input_ids"])
    >>> page = compare(pair, parse_modes("plain,topk:k=3", 5), batch, 8)
    >>> [text["title"] for text in page.to_dict()["texts"]]
    ['plain', 'topk:k=3']
    """
    texts = [_text(pair, mode, batch, max_new_tokens, right) for mode in modes]
    return InspectionPage(texts, pair.tokenizer, prompt)


def _text(
    pair: Pair,
    mode: DecodingMode,
    batch: PromptBatch,
    max_new_tokens: int,
    right: Callable[[list[int]], bool] | None,
) -> InspectedText:
    inspected = mode if mode.rule is None else replace(mode, settings={**mode.settings, "inspect": True})
    seen = run_request(pair, inspected, batch, max_new_tokens)
    timed = run_request(pair, mode, batch, max_new_tokens)
    records = seen.stats.records if seen.stats else [TokenRecord(x, "target") for x in seen.rows[0].tolist()]
    speed = {"tokens per second": f"{len(records) / timed.seconds:.3g}"} if timed.seconds else {}
    figures = timed.stats.brief(timed.seconds) if timed.stats else speed
    if right is not None:
        figures = {"answer": "right" if right([record.token for record in records]) else "wrong", **figures}
    return InspectedText(mode.label, records, figures)
