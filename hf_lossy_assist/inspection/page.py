"""A page that shows texts with every token's fate, made from nothing but what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader

from .token_record import FATES, Judgement, TokenRecord

if TYPE_CHECKING:
    from ..stats import LossyStats

LOSSY_STYLES = 3
"""How many lossy rules of one page are told apart by their colours and lines."""


@dataclass(frozen=True)
class InspectedText:
    """One text of a page: what it was made by, its tokens, the call's statistics, if it has any, and its seconds."""

    title: str
    records: Sequence[TokenRecord]
    stats: LossyStats | None = None
    seconds: float | None = None

    @property
    def figures(self) -> dict[str, str]:
        """What is to be known about the text as a whole, by its name in words."""
        figures = {"tokens": f"{len(self.records)}"}
        if self.stats is not None:
            figures["tokens per round"] = f"{self.stats.tokens_per_round:.2f}"
            figures["lossy"] = f"{100 * self.stats.lossy_share:.1f} %"
        if self.seconds:
            figures["tokens per second"] = f"{len(self.records) / self.seconds:.3g}"
        return figures


@dataclass(frozen=True)
class InspectionPage:
    """Texts side by side; in each, what the first lacks is marked, and in the first, what another lacks.

    A notebook shows it as it is.

    Attributes
    ----------
    texts
        The texts.
    tokenizer
        Theirs.
    prompt
        What they go on from.
    """

    texts: Sequence[InspectedText]
    tokenizer: Any
    prompt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything on the page as plain values that JSON can hold."""
        ids = [[record.token for record in text.records] for text in self.texts]
        same = [_shared(ids[0], other) for other in ids[1:]]
        # Of the first text, what all others have too.
        shared = [set.intersection(*(first for first, _ in same)) if same else {*range(len(ids[0]))}]
        shared += [own for _, own in same]
        texts = zip(self.texts, shared, strict=True)
        return {"prompt": self.prompt, "texts": [self._text(text, common) for text, common in texts]}

    def html(self) -> str:
        """Return the page, which needs nothing from anywhere else."""
        return _templates().get_template("page.html").render(self._shown())

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.fragment()

    def fragment(self) -> str:
        """Return what is on the page, to stand in another."""
        return _templates().get_template("texts.html").render(self._shown())

    def _shown(self) -> dict[str, Any]:
        values = self.to_dict()
        tokens = [token for text in values["texts"] for token in text["tokens"]]
        lossy = {x["rule"]: None for x in tokens if x["fate"] == "accepted_lossy"}
        styles = {rule: f"lossy{i % LOSSY_STYLES}" for i, rule in enumerate(lossy)}
        for token in tokens:
            token["style"] = styles.get(token["rule"], "") if token["fate"] == "accepted_lossy" else token["fate"]
        there = {token["fate"] for token in tokens}
        legend = [(fate, words) for fate, words in FATES.items() if fate in there - {"accepted_lossy"}]
        legend[1:1] = [(style, f"kept only by {rule}") for rule, style in styles.items()]
        marked = any(token["differs"] for token in tokens)
        judged = any(token["likeliest"] or token["q"] is not None for token in tokens)
        words = FATES | {style: f"kept only by {rule}" for rule, style in styles.items()}
        return {**values, "legend": legend, "marked": marked, "judged": judged, "words": words}

    def _text(self, text: InspectedText, common: set[int]) -> dict[str, Any]:
        shown = self._pieces([record.token for record in text.records])
        tokens = [
            {**self._token(record, piece), "differs": i not in common}
            for i, (record, piece) in enumerate(zip(text.records, shown, strict=True))
        ]
        return {"title": text.title, "figures": text.figures, "tokens": tokens}

    def _token(self, record: TokenRecord, piece: str) -> dict[str, Any]:
        said = record.judgement or Judgement()
        replaced = said.replaced and dict(zip(("token", "p", "q"), said.replaced, strict=True))
        return {
            "text": piece,
            "token": record.token,
            "fate": record.fate,
            "round": record.round,
            "rule": record.rule,
            "p": said.p,
            "q": said.q,
            "likeliest": [{"text": self._piece(token), "token": token, "p": p} for token, p in said.likeliest],
            "quantities": dict(said.quantities),
            "replaced": replaced and {"text": self._piece(replaced["token"]), **replaced},
        }

    def _piece(self, token: int) -> str:
        return self._pieces([token])[0]

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each token adds; of a token that ends inside a character, its name."""
        pieces, start, shown = [], 0, ""
        for end, token in enumerate(ids, 1):
            text = self.tokenizer.decode(ids[start:end], skip_special_tokens=False)
            whole = not text.endswith("\N{REPLACEMENT CHARACTER}")
            added = text[len(shown) :] if whole else ""
            pieces.append(added or str(self.tokenizer.convert_ids_to_tokens(token)))
            shown = text if whole else shown
            if text.endswith("\n"):  # or long texts would take long
                start, shown = end, ""
        return pieces


def _shared(a: Sequence[int], b: Sequence[int]) -> tuple[set[int], set[int]]:
    """Return the positions in each of two sequences that the other has too, in the same order."""
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return ({x.a + i for x in blocks for i in range(x.size)}, {x.b + i for x in blocks for i in range(x.size)})


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader(__package__, ""), autoescape=True, trim_blocks=True, lstrip_blocks=True)
