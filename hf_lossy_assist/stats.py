"""What a run did: tokens drafted, kept, corrected, and where the time went."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from .errors import LossyValueError

if TYPE_CHECKING:
    from .inspection.page import InspectionPage
    from .inspection.token_record import TokenRecord


@dataclass(frozen=True, repr=False)
class LossyStats:
    """Statistics of one ``generate()`` call.

    For a batch, ``rows`` has every row's own, and what is counted here is the sum over rows: a round of four rows is
    four rounds. Only ``target_calls`` and ``draft_calls`` count forward passes, which rows share.

    Attributes
    ----------
    rounds
        Draft-and-verify rounds.
    drafted
        Tokens proposed by the drafter.
    accepted
        Proposed tokens in the output.
    accepted_lossy
        Those of them that the lossless rule would have rejected (same random numbers).
    corrected, bonus
        Output tokens that came from the target: after a rejection, and after a fully accepted draft.
    target_calls, draft_calls
        Forward passes of the target, and of the draft model where the drafter counts them; for a row, those it took
        part in.
    accepted_histogram
        ``accepted_histogram[i]`` rounds kept i proposed tokens.
    accepted_by
        Accepted tokens credited to each rule.
    seconds
        Wall-clock seconds: ``total``, ``drafting``, ``verifying``, ``deciding``. On a GPU work is queued, so a
        stage's share includes waiting for earlier ones.
    lossless
        Whether the rule, as configured, could not change the output's law.
    unverified
        Accepted tokens that the target never judged, of a rule that runs ahead of it; they count as lossy.
    run_histogram
        ``run_histogram[i]`` runs committed i tokens before the target was asked.
    target_tokens, draft_tokens
        Tokens that went through each model's forward passes, padding included.
    head_calls
        Tokens that a head scored while drafting.
    flops
        For a rule that runs ahead: floating-point operations of all forwards, ``"actual"``, and by the paper's
        accounting, ``"paper"``, in which the target reads one token a call.
    plain_after
        Output tokens after which drafting was given up because the target alone is faster here; None where it
        was not.
    trace
        For every output token: ``"accepted"``, ``"accepted_lossy"``, ``"corrected"`` or ``"bonus"``; row after row.
    records
        What is known of every output token: :class:`~hf_lossy_assist.inspection.TokenRecord`; row after row.
    rows
        The statistics of every row of the batch; their ``seconds`` are the call's until the row ended.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_lossy: int = 0
    corrected: int = 0
    bonus: int = 0
    target_calls: int = 0
    draft_calls: int = 0
    accepted_histogram: tuple[int, ...] = ()
    accepted_by: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    lossless: bool = True
    unverified: int = 0
    run_histogram: tuple[int, ...] = ()
    target_tokens: int = 0
    draft_tokens: int = 0
    head_calls: int = 0
    flops: Mapping[str, float] = field(default_factory=dict)
    plain_after: int | None = None
    trace: tuple[str, ...] = ()
    records: tuple[TokenRecord, ...] = ()
    rows: tuple[LossyStats, ...] = ()

    @property
    def mean_accepted(self) -> float:
        """Drafted tokens kept per round (no correction, no bonus)."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Output tokens per round."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def runs(self) -> int:
        """Runs of tokens committed ahead of the target."""
        return sum(self.run_histogram)

    @property
    def mean_run(self) -> float:
        """Tokens committed per run before the target was asked."""
        return self.unverified / self.runs if self.runs else 0.0

    @property
    def target_calls_per_100_tokens(self) -> float:
        """Forward passes of the target per 100 output tokens."""
        return 100 * self.target_calls / self.tokens if self.tokens else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were kept."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return self.accepted + self.corrected + self.bonus

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of the whole call."""
        return self.tokens / self.seconds["total"] if self.seconds.get("total") else 0.0

    @property
    def lossy_share(self) -> float:
        """Share of the output tokens that only a lossy rule let through."""
        return self.accepted_lossy / self.tokens if self.tokens else 0.0

    def to_dict(self, rows: bool = False) -> dict[str, Any]:
        """Return everything that is counted and all that follows from it, as plain values that JSON can hold.

        The trace and the records are left out; of the rows of a batch, the same dictionaries where ``rows`` says so.
        """
        values = {
            x.name: _plain(getattr(self, x.name)) for x in fields(self) if x.name not in ("trace", "records", "rows")
        }
        values = {"tokens": self.tokens, **values, **{name: getattr(self, name) for name in _DERIVED}}
        return values | ({"rows": [row.to_dict() for row in self.rows]} if rows else {})

    def figures(self) -> dict[str, str]:
        """Return what a person wants to read, by its name in words."""
        known = {
            "tokens": f"{self.tokens}",
            "rounds": f"{self.rounds}",
            "tokens per round": f"{self.tokens_per_round:.2f}",
            "mean accepted": f"{self.mean_accepted:.2f}",
            "drafted": f"{self.drafted}",
            "accepted": f"{self.accepted} ({100 * self.acceptance_rate:.1f} % of drafted)",
            "accepted only by the lossy rule": f"{self.accepted_lossy} ({100 * self.lossy_share:.1f} % of the text)",
            "corrected": f"{self.corrected}",
            "bonus": f"{self.bonus}",
            "target calls": f"{self.target_calls}",
            "draft calls": f"{self.draft_calls}",
            "accepted by": ", ".join(f"{rule} {count}" for rule, count in self.accepted_by.items()),
            "rounds by tokens accepted": " ".join(f"{n}:{count}" for n, count in enumerate(self.accepted_histogram)),
        }
        known |= {f"seconds, {stage}": f"{seconds:.3f}" for stage, seconds in self.seconds.items()}
        return known | ({"tokens per second": f"{self.tokens_per_second:.1f}"} if self.seconds.get("total") else {})

    @property
    def title(self) -> str:
        """What the figures are about."""
        return "Statistics" + (" (lossless)" if self.lossless else " (lossy)")

    def summary(self) -> str:
        """Return the figures as a text of one line each.

        Examples
        --------
        >>> print(LossyStats(rounds=2, drafted=4, accepted=3, bonus=2).summary())
        Statistics (lossless)
          tokens                           5
          rounds                           2
          tokens per round                 2.50
          mean accepted                    1.50
          drafted                          4
          accepted                         3 (75.0 % of drafted)
          accepted only by the lossy rule  0 (0.0 % of the text)
          corrected                        0
          bonus                            2
          target calls                     0
          draft calls                      0
        """
        figures = {name: value for name, value in self.figures().items() if value}
        width = max(map(len, figures))
        return "\n".join([self.title, *(f"  {name:<{width}}  {value}" for name, value in figures.items())])

    def show(self, tokenizer: Any, *, row: int = 0, prompt: str = "") -> InspectionPage:
        """Return a page of the text with every token's fate, which a notebook shows.

        Pointing at a token, or going to it by the Tab key, shows what the models said about it, where the call had
        ``lossy_config={"inspect": True}``.

        Parameters
        ----------
        tokenizer
            The target's.
        row
            Which text of a batch.
        prompt
            What to show before the text.

        Raises
        ------
        LossyValueError
            When there is no such row.

        Examples
        --------
        >>> import hf_lossy_assist
        >>> from hf_lossy_assist import pairs
        >>> pair = pairs.load("arithmetic")
        >>> inputs = pair.tokenizer("Tom has 3 apples and buys 4 more.", return_tensors="pt")
        >>> with hf_lossy_assist.enabled(pair.target, assistant_model=pair.draft):
        ...     out = pair.target.generate(**inputs, max_new_tokens=3, return_dict_in_generate=True)
        >>> page = out.lossy_stats.show(pair.tokenizer)
        >>> page.to_dict()["texts"][0]["figures"]["tokens"]
        '3'
        """
        from .inspection.page import InspectedText, InspectionPage  # which needs a template engine

        rows = self.rows or (self,)
        if not 0 <= row < len(rows):
            raise LossyValueError(f"`row` has to be one of the {len(rows)} rows, from 0, but is {row!r}")
        own = rows[row]
        text = InspectedText(" or ".join(own.accepted_by), own.records, own, own.seconds.get("total"))
        return InspectionPage([text], tokenizer, prompt)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self.figures().items()
            if value
        )
        return f"<table><caption>{html.escape(self.title)}</caption>{rows}</table>"

    def __repr__(self) -> str:
        speed = f", {self.tokens_per_second:.1f} tokens/s" if self.tokens_per_second else ""
        return (
            f"<LossyStats: {self.tokens} tokens in {self.rounds} rounds, {self.tokens_per_round:.2f} per round, "
            f"{100 * self.acceptance_rate:.1f} % of drafted accepted, {100 * self.lossy_share:.1f} % lossy{speed}>"
        )

    def __add__(self, other: LossyStats) -> LossyStats:
        return joined([self, other]) if isinstance(other, LossyStats) else NotImplemented

    def __radd__(self, other: object) -> LossyStats:
        return self if other == 0 else NotImplemented  # where `sum` begins


class CollectedStats:
    """The statistics of several calls; whatever else it is asked for, it answers for their sum.

    Attributes
    ----------
    calls
        The statistics of every call, in the order in which they ended.
    """

    def __init__(self) -> None:
        self.calls: list[LossyStats] = []

    @property
    def total(self) -> LossyStats:
        """Their sum."""
        return joined(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[LossyStats]:
        return iter(self.calls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "calls":
            raise AttributeError(name)
        return getattr(self.total, name)

    def __repr__(self) -> str:
        return f"<{len(self)} calls: {self.total!r}>"


def joined(calls: Sequence[LossyStats]) -> LossyStats:
    """Return the sums over calls, with all of their rows."""
    totals = {name: sum(getattr(call, name) for call in calls) for name in (*COUNTS, *WORK)}
    return LossyStats(
        **totals,
        **merged(calls),
        seconds=_added(call.seconds for call in calls),
        flops=_added(call.flops for call in calls),
        lossless=all(call.lossless for call in calls),
        plain_after=next((call.plain_after for call in calls if call.plain_after is not None), None),
        rows=tuple(replace(row, rows=()) for call in calls for row in call.rows or (call,)),
    )


def merged(parts: Sequence[LossyStats]) -> dict[str, Any]:
    """Return the sums of what is counted by length or by rule, and the traces one after another."""
    return {
        "accepted_histogram": _summed(part.accepted_histogram for part in parts),
        "run_histogram": _summed(part.run_histogram for part in parts),
        "accepted_by": _added(part.accepted_by for part in parts),
        "trace": tuple(kind for part in parts for kind in part.trace),
        "records": tuple(record for part in parts for record in part.records),
    }


def _added(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            totals[name] = totals.get(name, 0) + value
    return totals


def _summed(histograms: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*histograms, fillvalue=0)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


WORK = ("target_calls", "draft_calls", "target_tokens", "draft_tokens", "head_calls")
"""What is counted of forward passes."""
COUNTS = ("rounds", "drafted", "accepted", "accepted_lossy", "corrected", "bonus", "unverified")
"""What is counted of tokens and rounds."""
_DERIVED = (
    "tokens_per_round",
    "mean_accepted",
    "acceptance_rate",
    "lossy_share",
    "target_calls_per_100_tokens",
    "tokens_per_second",
)
