"""Kinds of logits processors, and what ``deepcopy`` can't copy of those of grammar libraries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.generation import logits_process as _processors

_SURE = 256


class NucleusWarper(_processors.TopPLogitsWarper):
    """transformers' top-p warper, which on a CPU sorts only what the nucleus needs.

    A sort of 150,000 logits takes 13 ms a position, and a round has as many positions as drafted tokens, twice. Nearly
    every nucleus lies among the likeliest 256 tokens; other positions are sorted whole.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if scores.device.type != "cpu" or scores.shape[-1] <= 4 * _SURE:
            return super().__call__(input_ids, scores)
        best, tokens = scores.topk(_SURE)
        mass = (best - scores.logsumexp(-1, keepdim=True)).exp().cumsum(-1)
        removed = torch.nn.functional.pad(mass[:, :-1], (1, 0)) >= self.top_p
        removed[:, : self.min_tokens_to_keep] = False
        nucleus = torch.full_like(scores, self.filter_value)
        nucleus.scatter_(-1, tokens, best.masked_fill(removed, self.filter_value))
        wide = ~removed[:, -1]  # also where a logit is NaN
        if wide.any():
            nucleus[wide] = super().__call__(input_ids, scores[wide])
        return nucleus


# They look at one position's logits alone, so all positions of a round go through them at once.
PREFIX_FREE_PROCESSORS = (
    NucleusWarper,
    _processors.TemperatureLogitsWarper,
    _processors.TopPLogitsWarper,
    _processors.TopKLogitsWarper,
    _processors.MinPLogitsWarper,
    _processors.TypicalLogitsWarper,
    _processors.EpsilonLogitsWarper,
    _processors.EtaLogitsWarper,
    _processors.SuppressTokensLogitsProcessor,
    _processors.InfNanRemoveLogitsProcessor,
    _processors.LogitNormalization,
)


# They depend on a row's number in the batch, not only on its tokens.
_INDEXED_PROCESSORS = (
    _processors.PrefixConstrainedLogitsProcessor,
    _processors.EncoderRepetitionPenaltyLogitsProcessor,
    _processors.EncoderNoRepeatNGramLogitsProcessor,
)


# They change no scores. They look at a call's first ones, of all rows, and are read after the call.
_OBSERVERS = (_processors.WhisperNoSpeechDetection,)


UNREPEATABLE = _processors.UnbatchedClassifierFreeGuidanceLogitsProcessor
"""A second call for one prefix corrupts its cache, which is too large to be copied."""


def without_observers(processors: Iterable[Any]) -> LogitsProcessorList:
    """Return the processors that may change scores, the nucleus' as one that sorts less."""
    return LogitsProcessorList([_sorting_less(x) for x in processors if not isinstance(x, _OBSERVERS)])


def _sorting_less(processor: Any) -> Any:
    if type(processor) is not _processors.TopPLogitsWarper or processor.top_p == 1:
        return processor
    return NucleusWarper(processor.top_p, processor.filter_value, processor.min_tokens_to_keep)


def observe(processors: Sequence[Any], model: PreTrainedModel, ids: Tensor, inputs: Mapping[str, Any]) -> None:
    """Show observers the first scores after prompts ``ids`` ``(B, L)``, with the encoder's outputs among ``inputs``."""
    for i, observer in enumerate(processors):
        if not isinstance(observer, _OBSERVERS):
            continue
        scores = ids.new_zeros(len(ids), 0)  # it runs the model itself
        if observer.start_of_trans_offset == 1:
            given = {name: inputs.get(name) for name in ("encoder_outputs", "attention_mask", "decoder_attention_mask")}
            scores = model(decoder_input_ids=ids, **given, use_cache=False).logits[:, -1].float()
            scores = without_observers(processors[:i])(ids, scores)
        observer(ids, scores)


def process_rows_alike(processors: Iterable[Any]) -> bool:
    """Tell whether logits processors are known to ignore a row's number in the batch."""
    return process_rows_apart(processors) and not any(_padding_of(processor) for processor in processors)


def process_rows_apart(processors: Iterable[Any]) -> bool:
    """Tell whether :func:`of_rows` can make processors for some rows of a batch."""
    return all(_is_stock(processor) and not isinstance(processor, _INDEXED_PROCESSORS) for processor in processors)


def of_rows(processors: Iterable[Any], numbers: Tensor) -> LogitsProcessorList:
    """Return processors for the rows of a batch with these ``numbers`` ``(R,)``, which may be there several times."""
    chosen = LogitsProcessorList()
    for processor in processors:
        if _padding_of(processor):
            every = processor.prompt_ignore_length = processor.prompt_ignore_length.to(numbers.device)
            processor = copy.copy(processor)
            processor.prompt_ignore_length = every.index_select(0, numbers)
        chosen.append(processor)
    return chosen


def _padding_of(processor: Any) -> bool:
    """Tell whether a processor holds the padding before each row's prompt."""
    return isinstance(getattr(processor, "prompt_ignore_length", None), Tensor)


def reads_only_text(processor: Any) -> bool:
    """Tell whether a logits processor is known to keep no state between calls that changes its results."""
    return _is_stock(processor) and not isinstance(processor, _MAY_KEEP_STATE)


def _is_stock(processor: Any) -> bool:
    return type(processor) is NucleusWarper or type(processor).__module__ == _processors.__name__


_CALLS_USER = _processors.PrefixConstrainedLogitsProcessor
_MAY_KEEP_STATE = (_CALLS_USER, _processors.SynthIDTextWatermarkLogitsProcessor)


def process_row(processor: Any, row: int, batch: int, ids: Tensor, scores: Tensor) -> Tensor:
    """Process ``scores`` ``(1, V)`` of one ``row`` of a batch, whose text is ``ids`` ``(1, L)``."""
    if batch == 1:
        return processor(ids, scores)
    if type(processor) is _CALLS_USER:  # a function need not know the texts of other rows
        function, prompt = processor._prefix_allowed_tokens_fn, row // processor._num_beams
        return _CALLS_USER(lambda _, text: function(prompt, text), 1)(ids, scores)
    return processor(ids.expand(batch, -1), scores.repeat(batch, 1))[row : row + 1]


_OWN_COPIES: dict[str, Callable[[Any], Any]] = {
    "xgrammar.GrammarMatcher": lambda matcher: matcher.fork(),
    "builtins.LLMatcher": lambda matcher: matcher.deep_copy(),  # llguidance names no module of its types
}
_SHARED_PARTS = (
    "xgrammar.CompiledGrammar",
    "xgrammar.GrammarCompiler",
    "xgrammar.TokenizerInfo",
    "builtins.LLTokenizer",
    "outlines_core.Index",
    "outlines_core.Vocabulary",
    "transformers_cfg.ByteTrie",
    "transformers_cfg.StringRecognizer",
)
_LIBRARIES = ("xgrammar", "outlines", "outlines_core", "llguidance", "lmformatenforcer", "transformers_cfg")


def is_grammar_part(part: Any) -> bool:
    """Tell whether a part of a processor comes from a library of grammars."""
    return type(part).__module__.partition(".")[0] in _LIBRARIES or _name(part) in (*_OWN_COPIES, *_SHARED_PARTS)


def with_grammar_of_row(processor: Any, row: int, batch: int) -> Any:
    """Return a processor with the grammar of one row, if each row of the batch has one, else None."""
    if _name(processor) != "xgrammar.LogitsProcessor" or processor.matchers:
        return None
    grammars = processor.compiled_grammars
    return type(processor)([grammars[row]]) if len(grammars) == batch > 1 else None


def copies_of_grammar_parts(parts: Iterable[Any], tokens: Iterable[int]) -> dict[int, Any]:
    """Return copies of parts of a processor that has seen generated ``tokens``, by ``id`` of the part."""
    named = [(_name(part), part) for part in parts]
    copies = {id(part): part for name, part in named if name in _SHARED_PARTS}
    copies |= {id(part): _OWN_COPIES[name](part) for name, part in named if name in _OWN_COPIES}
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
