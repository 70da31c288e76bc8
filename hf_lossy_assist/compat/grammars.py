"""Parts of grammar libraries' logits processors that ``deepcopy`` can't copy, or copies with too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _same(part: Any) -> Any:
    return part


# llguidance names no module of its types.
_COPIES: dict[str, Callable[[Any], Any]] = {
    "xgrammar.GrammarMatcher": lambda matcher: matcher.fork(),
    "xgrammar.CompiledGrammar": _same,
    "xgrammar.GrammarCompiler": _same,
    "xgrammar.TokenizerInfo": _same,
    "builtins.LLMatcher": lambda matcher: matcher.deep_copy(),
    "builtins.LLTokenizer": _same,
    "outlines_core.Index": _same,
    "outlines_core.Vocabulary": _same,
    "transformers_cfg.ByteTrie": _same,
    "transformers_cfg.StringRecognizer": _same,
}


_LIBRARIES = ("xgrammar", "outlines", "outlines_core", "llguidance", "lmformatenforcer", "transformers_cfg")


def is_grammar_part(part: Any) -> bool:
    """Tell whether a part of a processor comes from a library of grammars."""
    return type(part).__module__.partition(".")[0] in _LIBRARIES or _name(part) in _COPIES


def with_grammar_of_row(processor: Any, row: int, batch: int) -> Any:
    """Return a processor with the grammar of one row, if each row of the batch has one, else None."""
    if _name(processor) != "xgrammar.LogitsProcessor" or processor.matchers:
        return None
    grammars = processor.compiled_grammars
    return type(processor)([grammars[row]]) if len(grammars) == batch > 1 else None


def copies_of_grammar_parts(parts: Iterable[Any], tokens: Iterable[int]) -> dict[int, Any]:
    """Return copies of parts of a processor that has seen generated ``tokens``, by ``id`` of the part."""
    named = [(_name(part), part) for part in parts]
    copies = {id(part): _COPIES[name](part) for name, part in named if name in _COPIES}
    indexes = [part for name, part in named if name == "outlines_core.Index"]
    if len(indexes) == 1:
        for name, guide in named:
            if name == "outlines_core.Guide" and (own := _guide_at(guide, indexes[0], tokens)) is not None:
                copies[id(guide)] = own
    return copies


def _name(part: Any) -> str:
    return f"{type(part).__module__.partition('.')[0]}.{type(part).__name__}"


def _guide_at(guide: Any, index: Any, tokens: Iterable[int]) -> Any:
    """Return another guide in the same state, or None; ``deepcopy`` would copy the index, of megabytes, with it."""
    own = type(guide)(index)
    for token in tokens:
        if not own.is_finished() or own.accepts_tokens([token]):
            own.advance(token, return_tokens=False)
    return own if own.get_state() == guide.get_state() else None
