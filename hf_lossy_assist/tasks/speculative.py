"""Prompts of the benchmarks of speculative decoding, by category: Spec-Bench and SPEED-Bench."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import LossyValueError, need, warn
from .plain_prompts import Prompts
from .task import Example
from .task_data import from_hub, prompt_of, read_jsonl

_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_MASKED = "FULL BENCHMARK DATA SHOULD BE FETCHED"
_Config = Literal["qualitative", "throughput_1k", "throughput_2k", "throughput_8k", "throughput_16k", "throughput_32k"]


class SpecBench(Prompts):
    """Spec-Bench (Xia et al. 2024, arXiv:2401.07851): 480 prompts in six categories.

    A score is ROUGE-L against the reference mode's text. The categories take turns, so that any number of prompts has
    as many of each. Only the first turn of a conversation is asked.

    Parameters
    ----------
    data
        The published file, ``data/spec_bench/question.jsonl`` of its repository. The categories of MT-bench become one,
        ``mt_bench``, as in the published tables.
    category
        Keeps only this category.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "question.jsonl"
    >>> _ = path.write_text('{"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Shorter!"]}\\n')
    >>> [(example.category, example.prompt) for example in SpecBench(data=str(path)).examples("test", 9)]
    [('mt_bench', 'Write a poem.')]
    """

    name = "spec-bench"
    splits = ("test",)
    max_new_tokens = 1024

    def __init__(self, data: str, category: str | None = None) -> None:
        rows = read_jsonl(data, ("category",))
        named = ("mt_bench" if row["category"] in _MT_BENCH else row["category"] for row in rows)
        self._by_split = {"test": _in_turn(zip(named, map(prompt_of, rows), strict=True), category, data)}


class SpeedBench(SpecBench):
    """SPEED-Bench (NVIDIA, arXiv:2604.09557): prompts in eleven categories, or of 1k to 32k tokens in three.

    As :class:`SpecBench`. The published files mask many prompts, which have to be fetched from their sources by
    NVIDIA's own ``specdec_bench``; masked ones are left out, with a warning.

    Parameters
    ----------
    data
        A file of the published format, ``.parquet`` or ``.jsonl``, whose rows have ``category`` and ``turns``. Without
        it, ``nvidia/SPEED-Bench`` of the Hub.
    config
        Which of the Hub's sets: ``qualitative``, or ``throughput_1k``, ``_2k``, ``_8k``, ``_16k``, ``_32k``.
    category
        Keeps only this category: ``coding``, say, or ``low_entropy`` of a throughput set.
    """

    name = "speed-bench"

    def __init__(self, data: str | None = None, config: str = "qualitative", category: str | None = None) -> None:
        if config not in get_args(_Config):
            raise LossyValueError(f"`config` has to be one of {list(get_args(_Config))}, but is {config!r}")
        source = data or f"nvidia/SPEED-Bench, {config}"
        rows = list(from_hub("nvidia/SPEED-Bench", config, "test") if data is None else _rows(data))
        whole = [(row.get("category"), prompt_of(row)) for row in rows]
        known = [(name, text) for name, text in whole if isinstance(text, str) and not text.startswith(_MASKED)]
        if len(known) < len(rows):
            warn(
                f"{len(rows) - len(known)} of the {len(rows)} prompts of {source} are masked, and left out. NVIDIA's "
                "`specdec_bench` (Model-Optimizer) fetches them: pass the file that it writes as `data`"
            )
        self._by_split = {"test": _in_turn(known, category, source)}


def _rows(data: str) -> Iterable[Any]:
    if Path(data).suffix != ".parquet":
        return read_jsonl(data, ("category",))
    if not Path(data).is_file():
        raise LossyValueError(f"`data` has to be an existing file, but there is none at {data!r}")
    need("lab", "a .parquet file")
    from pyarrow.parquet import read_table  # of the package datasets

    return read_table(data, columns=["category", "turns"]).to_pylist()


def _in_turn(rows: Iterable[tuple[Any, Any]], category: str | None, source: str) -> list[Example]:
    """Return prompts so that categories take turns, in the order in which they first appear."""
    found: dict[str, list[Example]] = {}
    for name, text in rows:
        if not isinstance(name, str) or not isinstance(text, str):
            raise LossyValueError(f"`data` ({source}) has to have rows with a `category` and `turns`, but one has not")
        found.setdefault(name, []).append(Example(text, "", category=name))
    if category is not None and category not in found:
        raise LossyValueError(f"`category` has to be one of {sorted(found)} in {source}, but is {category!r}")
    chosen = found.values() if category is None else [found[category]]
    return [example for example in chain.from_iterable(zip_longest(*chosen)) if example is not None]
