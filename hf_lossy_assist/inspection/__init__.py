"""A page that shows texts with every token's fate, made from the records of ``core.statistics`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, PackageLoader

FATES: Mapping[str, str] = {
    "accepted": "kept, as the lossless rule would",
    "accepted_lossy": "kept only by a lossy rule",
    "unverified": "not seen by the target",
    "corrected": "the target's, in place of a drafted token",
    "bonus": "the target's, after a draft that was kept",
    "target": "the target's own",
}
"""The fates of a token, in words; the last is for positions where nothing was drafted."""

LOSSY_STYLES = 3
"""How many lossy rules a page can show in different colours and lines."""

_UNSCORED = SimpleNamespace(p=None, q=None, likeliest=(), quantities={}, replaced=None)


@dataclass(frozen=True)
class InspectedText:
    """One text of a page: its title, its tokens, and labelled figures about the whole text."""

    title: str
    records: Sequence[Any]  # a :class:`~hf_lossy_assist.core.statistics.TokenRecord` for every token
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class InspectionPage:
    """Texts side by side, with the tokens marked that the first text and another do not share.

    A notebook displays it as it is. All texts follow ``prompt`` and use ``tokenizer``.
    """

    texts: Sequence[InspectedText]
    tokenizer: Any
    prompt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything on the page as plain values that JSON can hold."""
        ids = [[record.token for record in text.records] for text in self.texts] or [[]]
        same = [_shared(ids[0], other) for other in ids[1:]]
        # The first text shares a token when all others have it too.
        shared = [set.intersection(*(first for first, _ in same)) if same else {*range(len(ids[0]))}]
        shared += [own for _, own in same]
        texts = zip(self.texts, shared, strict=False)  # there may be no text
        return {"prompt": self.prompt, "texts": [self._text(text, common) for text, common in texts]}

    def html(self) -> str:
        """Return a self-contained page."""
        return _templates().get_template("page.html").render(self._shown())

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def fragment(self) -> str:
        """Return the body of the page, for embedding in another."""
        return _templates().get_template("texts.html").render(self._shown())

    _repr_html_ = fragment

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
        return {"title": text.title, "figures": {"tokens": f"{len(tokens)}", **text.figures}, "tokens": tokens}

    def _token(self, record: Any, piece: str) -> dict[str, Any]:
        said = record.scores or _UNSCORED
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
        """Return the text that each token adds, or the name of a token that adds none."""
        pieces = Pieces(self.tokenizer)
        return [pieces.add(token) or str(self.tokenizer.convert_ids_to_tokens(token)) for token in ids]


class Pieces:
    """The text that each further token adds.

    A token may be half a character, or a space only after another token, so the last line is decoded as a whole.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = False) -> None:
        self._decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
        self._tokens: list[int] = []  # of the last line
        self._shown = ""

    def add(self, token: int) -> str | None:
        """Return a token's text; None while a character is incomplete."""
        self._tokens.append(token)
        return None if self._decode(self._tokens).endswith("\N{REPLACEMENT CHARACTER}") else self.rest()

    def rest(self) -> str:
        """Return what was not returned before."""
        line = self._decode(self._tokens)
        added, self._shown = line[len(self._shown) :], line
        if line.endswith("\n"):  # keeps decoding linear in the length
            self._tokens, self._shown = [], ""
        return added


def _shared(a: Sequence[int], b: Sequence[int]) -> tuple[set[int], set[int]]:
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return ({x.a + i for x in blocks for i in range(x.size)}, {x.b + i for x in blocks for i in range(x.size)})


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader(__name__, ""), autoescape=True, trim_blocks=True, lstrip_blocks=True)
