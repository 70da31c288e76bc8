"""Statistics of a run: tokens drafted, kept and corrected, and the time of its stages; and records of every token."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..errors import LossyValueError

if TYPE_CHECKING:
    from ..inspection import InspectionPage


@dataclass(frozen=True)
class TokenScores:
    """The models' scores of one token, after the user's processors."""

    p: float | None = None  # the token's probability by the target; None without such a distribution
    q: float | None = None  # its probability by the draft, likewise
    likeliest: tuple[tuple[int, float], ...] = ()  # the target's likeliest tokens at the position, with their p
    # what the rule compared, by name; for a correction, what it compared about the replaced token
    quantities: Mapping[str, float] = field(default_factory=dict)
    # the replaced token with its p and q; None in trees, where it may be one of several
    replaced: tuple[int, float, float | None] | None = None


@dataclass(frozen=True)
class TokenRecord:
    """One token of an output."""

    token: int  # its id
    fate: str  # as in `LossyStats.trace`, or "unverified"
    round: int = 0  # the round that produced it, from 0
    rule: str | None = None  # the rule that a kept token is credited to
    scores: TokenScores | None = None  # recorded under `lossy_config={"inspect": True}`

    @property
    def kind(self) -> str:
        """As in `LossyStats.trace`, where unverified tokens are lossily accepted ones."""
        return "accepted_lossy" if self.fate == "unverified" else self.fate


@dataclass(frozen=True, repr=False)
class LossyStats:
    """Statistics of one ``generate()`` call.

    In a batch, ``rows`` has the statistics of every row, and the other fields are their sums: a round of four rows
    counts as four rounds. Only ``target_calls`` and ``draft_calls`` count the forward passes, which rows share.

    Attributes
    ----------
    rounds
        Draft-and-verify rounds.
    drafted
        Tokens proposed by the drafter.
    accepted
        Proposed tokens in the output.
    accepted_lossy
        Accepted tokens that the lossless rule would have rejected with the same random numbers.
    corrected, bonus
        Output tokens from the target: after a rejection, and after a fully accepted draft.
    target_calls, draft_calls
        Forward passes of the target, and of the draft model if the drafter counts them. A row counts its own.
    accepted_histogram
        ``accepted_histogram[i]`` rounds kept i proposed tokens.
    accepted_by
        Accepted tokens credited to each rule, including those that the lossless rule would accept too;
        ``accepted_lossy_by`` excludes them.
    seconds
        Wall-clock seconds: ``total``, ``drafting``, ``verifying``, ``deciding``. A GPU works asynchronously, so a stage
        may include waiting for earlier ones.
    lossless
        Whether the rule, as configured, leaves the distribution of the output unchanged.
    unverified
        Accepted tokens that the target did not check; they count as lossy.
    run_histogram
        ``run_histogram[i]`` runs committed i unverified tokens before the target was asked.
    target_tokens, draft_tokens
        Tokens in each model's forward passes, padding included.
    looked_up
        Drafted tokens that were looked up in the text, where a model drafts otherwise.
    records
        A :class:`~hf_lossy_assist.core.statistics.TokenRecord` for every output token; row after row.
    rows
        The statistics of every row of the batch; their ``seconds`` end with the row.
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
    looked_up: int = 0
    records: tuple[TokenRecord, ...] = ()
    rows: tuple[LossyStats, ...] = ()

    @property
    def trace(self) -> tuple[str, ...]:
        """``"accepted"``, ``"accepted_lossy"``, ``"corrected"`` or ``"bonus"`` for each output token, row after row."""
        return tuple(record.kind for record in self.records)

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
        """Runs of unverified tokens."""
        return sum(self.run_histogram)

    @property
    def mean_run(self) -> float:
        """Unverified tokens per run."""
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
    def accepted_lossy_by(self) -> dict[str, int]:
        """The tokens of ``accepted_lossy`` by the rule that kept them; empty without ``records``."""
        counts = Counter(record.rule for record in self.records if record.kind == "accepted_lossy")
        return {rule: counts[rule] for rule in self.accepted_by if rule != "lossless" and self.records}

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of the whole call."""
        return self.tokens / self.seconds["total"] if self.seconds.get("total") else 0.0

    @property
    def lossy_share(self) -> float:
        """Share of the output tokens kept only by a lossy rule."""
        return self.accepted_lossy / self.tokens if self.tokens else 0.0

    def to_dict(self, rows: bool = False) -> dict[str, Any]:
        """Return all counts and derived figures as plain JSON values; with ``rows``, those of every row as well."""
        values = {x.name: _plain(getattr(self, x.name)) for x in fields(self) if x.name not in ("records", "rows")}
        values = {"tokens": self.tokens, **values, **{name: getattr(self, name) for name in _DERIVED}}
        return values | ({"rows": [row.to_dict() for row in self.rows]} if rows else {})

    def figures(self) -> dict[str, str]:
        """Return the figures for reading, by their names in words."""
        known = {
            "tokens": f"{self.tokens}",
            "rounds": f"{self.rounds}",
            "tokens per round": f"{self.tokens_per_round:.2f}",
            "mean accepted": f"{self.mean_accepted:.2f}",
            "drafted": f"{self.drafted}",
            "accepted": f"{self.accepted} ({100 * self.acceptance_rate:.1f} % of drafted)",
            "accepted by the lossless rule too": f"{self.accepted - self.accepted_lossy}",
            "accepted only by the lossy rule": f"{self.accepted_lossy} ({100 * self.lossy_share:.1f} % of the text)",
            "accepted lossily by": ", ".join(f"{rule} {count}" for rule, count in self.accepted_lossy_by.items()),
            "corrected": f"{self.corrected}",
            "bonus": f"{self.bonus}",
            "target calls": f"{self.target_calls}",
            "draft calls": f"{self.draft_calls}",
            **({"looked up": f"{self.looked_up}"} if self.looked_up else {}),
            "rounds by tokens accepted": " ".join(f"{n}:{count}" for n, count in enumerate(self.accepted_histogram)),
        }
        known |= {f"seconds, {stage}": f"{seconds:.3f}" for stage, seconds in self.seconds.items()}
        return known | ({"tokens per second": f"{self.tokens_per_second:.1f}"} if self.seconds.get("total") else {})

    def brief(self) -> dict[str, str]:
        """Return the few figures that a page of tokens shows."""
        return {"tokens per round": f"{self.tokens_per_round:.2f}", "lossy": f"{100 * self.lossy_share:.1f} %"}

    @property
    def title(self) -> str:
        """The heading of the figures."""
        return "Statistics" + (" (lossless)" if self.lossless else " (lossy)")

    def summary(self) -> str:
        """Return the figures as text, one per line.

        Examples
        --------
        >>> print(LossyStats(rounds=2, drafted=4, accepted=3, bonus=2).summary())
        Statistics (lossless)
          tokens                             5
          rounds                             2
          tokens per round                   2.50
          mean accepted                      1.50
          drafted                            4
          accepted                           3 (75.0 % of drafted)
          accepted by the lossless rule too  3
          accepted only by the lossy rule    0 (0.0 % of the text)
          corrected                          0
          bonus                              2
          target calls                       0
          draft calls                        0
        """
        figures = {name: value for name, value in self.figures().items() if value}
        width = max(map(len, figures))
        return "\n".join([self.title, *(f"  {name:<{width}}  {value}" for name, value in figures.items())])

    def show(self, tokenizer: Any, *, row: int = 0, prompt: str = "") -> InspectionPage:
        """Return a page of the text with every token's fate, which a notebook displays.

        Hovering over a token, or focusing it with the Tab key, shows the models' scores of it, if the call had
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
        from ..inspection import InspectedText, InspectionPage  # needs a template engine

        rows = self.rows or (self,)
        if not 0 <= row < len(rows):
            raise LossyValueError(f"`row` has to be one of the {len(rows)} rows, from 0, but is {row!r}")
        own = rows[row]
        text = InspectedText(" or ".join(own.accepted_by), own.records, own.brief())
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
    """The statistics of several calls; all other attributes are read from their sum.

    Attributes
    ----------
    calls
        The statistics of every call, in the order in which they ended.
    """

    def __init__(self) -> None:
        self.calls: list[LossyStats] = []

    @property
    def total(self) -> LossyStats:
        """The sum over the calls."""
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
    totals = {name: sum(getattr(call, name) for call in calls) for name in (*_COUNTS, *WORK)}
    return LossyStats(
        **totals,
        accepted_histogram=_summed(call.accepted_histogram for call in calls),
        run_histogram=_summed(call.run_histogram for call in calls),
        accepted_by=_added(call.accepted_by for call in calls),
        records=tuple(record for call in calls for record in call.records),
        seconds=_added(call.seconds for call in calls),
        lossless=all(call.lossless for call in calls),
        rows=tuple(replace(row, rows=()) for call in calls for row in call.rows or (call,)),
    )


def _added(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    for part in parts:
        totals.update(part)
    return dict(totals)


def _summed(histograms: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*histograms, fillvalue=0)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


WORK = ("target_calls", "draft_calls", "target_tokens", "draft_tokens", "looked_up")
_COUNTS = ("rounds", "drafted", "accepted", "accepted_lossy", "corrected", "bonus", "unverified")
_DERIVED = (
    "tokens_per_round",
    "mean_accepted",
    "acceptance_rate",
    "lossy_share",
    "target_calls_per_100_tokens",
    "tokens_per_second",
)
