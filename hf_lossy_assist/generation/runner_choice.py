"""Chooses a call's runners: on static caches where these are wanted and possible, else on dynamic ones."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import cached_property

import torch
from torch.nn.functional import pad
from transformers.cache_utils import StaticCache

from ..compat.caches import CACHE, belongs_to_user, cache_name, is_offloaded_cache, new_cache, text_cache
from ..compat.inputs import forward_inputs, tokens_before
from ..compat.models import compiles_by_itself, device_of, has_hooks, has_recurrent_state
from ..compat.positions import FrequencySwitch
from ..compat.probe import ask
from ..drafting.draft_ends import DEFAULT_NUM_TOKENS
from ..drafting.tree import MOST
from ..drafting.vocabulary import Vocabulary, vocabulary_sizes
from ..errors import LossyUnsupportedError, warn_once
from ..models.processing import settings_of
from ..models.recurrent import RecurrentRunner, padding_before
from ..models.runner import DynamicCacheRunner, ModelRunner
from ..models.static.cache_slot import StaticCacheSlot, rewinds, take_slot
from ..models.static.fixed import FixedRunner, FixedSampler, Widths
from ..models.static.forwards import Compiling, compiling, decoder_layers, forget
from ..models.static.graphs import RECORDERS, CompiledRecording, Recording
from ..models.static.runner import StaticCacheRunner
from . import obstacles
from .drafters.base import Kind, Making, StaticDraft
from .drafters.draft_model import NO_END

_ANY_WIDTH = (8, 16, 40)
_SHORTER = (2, DEFAULT_NUM_TOKENS)  # tokens of graphs beside that of the longest draft, where drafts may end early
_AUTOMATIC_TREES = (17, 33, 65, MOST + 1)
LEAST_TOKENS = 32
"""Fewer new tokens don't pay for recording graphs: on an H200 it takes what graphs save in ten rounds of γ = 4."""
MOST_SLOTS = 16_384
"""Beyond so many slots, of all rows together, reading a static cache's empty ones costs what graphs save."""


class Path(Enum):
    """How forwards run."""

    DYNAMIC = "one by one"
    STATIC = "one by one, on a static cache"
    GRAPHS = "as recorded graphs, on a static cache"
    COMPILED = "compiled, on a static cache"


def choose_path(
    device: str,
    wanted: bool | None,
    *,
    static: bool = False,
    by_itself: bool = False,
    disabled: bool = False,
    tokens: int = 0,
    slots: int = 0,
    recording: Collection[str] = ("cuda",),
) -> Path:
    """Return how a call's forwards run on a type of ``device``.

    ``wanted`` is the user's ``compile``, ``static`` whether there is a static cache, and ``by_itself`` whether
    ``generate()`` would then compile; ``disabled`` is its ``disable_compile``. The call may add ``tokens`` to each
    text, and needs so many ``slots`` of a cache. Graphs are recorded on the types of device ``recording``.

    Examples
    --------
    >>> choose_path("cuda", None, tokens=200, slots=512).value
    'as recorded graphs, on a static cache'
    >>> choose_path("cpu", None, tokens=200, slots=512).value
    'one by one'
    """
    if wanted or (wanted is None and static and by_itself):
        return Path.COMPILED
    if static:
        return Path.STATIC
    pays = tokens >= LEAST_TOKENS and slots <= MOST_SLOTS
    return Path.GRAPHS if wanted is None and pays and not disabled and device in recording else Path.DYNAMIC


Runners = tuple[ModelRunner, ModelRunner | None]
"""The target's runner, and the draft model's; None where its source makes its own."""


def choose_runners(kind: Kind, making: Making, switch: FrequencySwitch | None) -> Runners:
    """Return the runners of a call, as :func:`choose_path` says; ``switch`` says where frequencies change.

    A static cache of the call's own that can't be used gives way to a dynamic one; for a caller's cache this is an
    error. Only what the user has asked for is warned of.
    """
    runners = _RunnerChoice(kind, making)
    return runners.static(switch) or (runners.dynamic(), None)


class _RunnerChoice:
    """Makes a call's runners."""

    def __init__(self, kind: Kind, making: Making) -> None:
        self.kind, self.config, self.making = kind, kind.asked.config, making
        self.model, self.call = making.call.model, making.call

    @cached_property
    def _before(self) -> int:
        """How many tokens the caller's cache holds before the prompt."""
        call = self.call
        return tokens_before(call.ids, call.inputs, call.config, call.held) if call.held else 0

    @property
    def _seen(self) -> int:
        """How many of the prompt's tokens the caller's cache holds."""
        return 0 if self._before else self.call.held

    @cached_property
    def _last_position(self) -> torch.Tensor | None:
        """``(…, B, 1)`` the highest position that a batch's texts can reach; None for one text, or where none is given.

        A caller's own positions may be higher than the text is long, and a video's times than the text after it.
        """
        positions = self.call.inputs.get("position_ids")
        if self.call.batch == 1 or positions is None:
            return None
        last = positions[..., -1:] + (min(self.call.config.max_length, NO_END) - self.call.ids.shape[1])
        return last.maximum(positions.amax(-1, keepdim=True))

    def dynamic(self) -> ModelRunner:
        """Return the target's runner on a dynamic cache, or with saved states."""
        model, call = self.model, self.call
        inputs, length = forward_inputs(model, call.ids, call.inputs), call.ids.shape[1]
        positions = call.inputs.get("position_ids")
        if positions is not None and (missing := self._before + length - positions.shape[-1]) > 0:
            call.inputs["position_ids"] = pad(positions, (missing, 0))  # of the tokens before, which nobody reads
        if has_recurrent_state(model):
            keeps_cache = belongs_to_user(call.cache) or bool(call.config.return_dict_in_generate)
            # Padding of a prompt alone may be part of the text, so only rows of a batch skip it.
            skips = call.of_batch and ask(model).free
            padding = padding_before(call.inputs.get("attention_mask")) if skips else 0
            return RecurrentRunner(inputs, call.inputs, length, self._seen, padding, keeps_cache=keeps_cache)
        # Some decoders leave out padding of a forward when they count its positions, but not that of forwards before.
        alone = model.config.is_encoder_decoder and bool((call.ids[:, 1:] == call.padding).any())
        return DynamicCacheRunner(
            inputs, call.inputs, length, self._seen, self._last_position, self._before, alone=alone
        )

    def static(self, switch: FrequencySwitch | None) -> Runners | None:
        """Return runners on static caches; None where these are impossible or not wanted."""
        model, call = self.model, self.call
        cache = call.cache
        given = isinstance(text_cache(cache), StaticCache)
        path = choose_path(
            device_of(model).type,
            self.config.compile,
            static=given,
            by_itself=given and compiles_by_itself(model, call.inputs, call.config),
            disabled=bool(call.config.disable_compile),
            tokens=call.config.max_length - call.ids.shape[1],
            slots=call.batch * call.config.max_length,
            recording=RECORDERS,
        )
        if path is Path.DYNAMIC:
            return None
        asked = self.config.compile or given
        obstacle = self._obstacle()
        if obstacle is None and switch is not None:
            obstacle = "its frequencies change with the width of a forward"
        if obstacle is not None:
            if given and belongs_to_user(cache):
                raise LossyUnsupportedError(
                    f"`{CACHE}` is a static cache, but {obstacle}; pass a DynamicCache, or leave it out"
                )
            call.inputs[cache_name(model)] = new_cache(model, cache, call.ids.shape[1]) if given else cache
            if asked:
                _say(given, obstacle)
            return None
        target = self._target(given)
        if path is not Path.STATIC and self._failed(target, path, self._of_target, asked) and not given:
            return None
        return target, self._draft(path, asked) if target.fixed.prepared else None

    def _target(self, given: bool) -> StaticCacheRunner:
        """Return the target's runner, on the caller's static cache or on one of the pool's."""
        model, call, cache = self.model, self.call, self.call.cache
        own = belongs_to_user(cache)
        needed, kind = call.config.max_length + self._of_target.room, self.kind
        slot = StaticCacheSlot(cache, int(cache.get_seq_length())) if own else take_slot(model, needed, call.batch)
        runner = StaticCacheRunner(model, slot, call.inputs, self._seen, self._last_position, kind.reads)
        returned = call.batch == 1 and bool(call.config.return_dict_in_generate)
        runner.fixed.keeps_cache = own or (returned and given)
        runner.copies_cache = returned and not runner.fixed.keeps_cache
        return runner

    def _draft(self, path: Path, asked: bool) -> ModelRunner | None:
        """Return the draft's runner; None where it drafts on a dynamic cache, or is no model."""
        if (draft := self.kind.static(self.making)) is None:
            return None
        if draft.obstacle is not None:
            if asked:
                _say(False, draft.obstacle)
            return None
        widths, call = self._of_draft(draft), self.call
        runner = draft.runner(take_slot(self.kind.model, call.config.max_length + widths.room, call.batch))
        return None if self._failed(runner, path, widths, asked) else runner

    @cached_property
    def _of_target(self) -> Widths:
        """What the target verifies: the drafted tokens and the token before them."""
        tree, longest = self.config.tree, self.kind.longest
        if tree is None:
            widths = _ANY_WIDTH if longest is None else (longest + 1,)
            return Widths(widths, room=widths[-1])
        most = min(MOST if tree.nodes == "auto" else tree.nodes, tree.candidates) + 1
        trees = (*(x for x in _AUTOMATIC_TREES if x < most), most) if tree.nodes == "auto" else (most,)
        return Widths(trees=trees, room=trees[-1])

    def _of_draft(self, draft: StaticDraft) -> Widths:
        """Return what drafting reads: the newest tokens, then a token, the nodes of a depth, or nothing."""
        tree, longest = self.config.tree, self.kind.longest
        if tree is not None:
            newest, sizes = tree.depth + 1, (tree.top_k,) * (tree.depth - 1)  # of the depths whose nodes are read
            room = newest + sum(sizes)
            return Widths((newest, *sizes), room=room) if draft.masks else Widths((newest,), sizes, room=room)
        # What drafts with a cache of its own has read the draft, but for its last token.
        newest = () if longest is None or not draft.reads_all else (longest + 1,)
        way = self._way(draft.vocabulary)
        if way is None:
            room = max((*draft.steps, *newest, 0)) + sum(draft.blocks)
            return Widths(draft.steps + newest, draft.blocks, room=room)
        # A look is cheaper than many tokens in vain.
        shorter = () if draft.blocks or not way.scores else (x for x in _SHORTER if x < longest)
        drafts = (*shorter, longest)
        room = max((*draft.steps, *newest, sum(drafts) + 1)) + sum(draft.blocks)
        return Widths(newest, drafts=drafts, sampler=way, room=room)

    def _way(self, vocabulary: Vocabulary) -> FixedSampler | None:
        """Return how whole drafts choose their tokens; None where each token is drafted alone."""
        lengths, call, draft = self.kind.lengths, self.call, self.kind.model
        settings = settings_of(call.processors)
        if self.kind.longest is None or settings is None or "draft_hidden" in self.config.rule.needs:
            return None
        # Hooks, such as those that time forwards, see each token.
        if any(has_hooks(x) for x in (draft, draft.get_decoder(), draft.get_output_embeddings()) if x is not None):
            return None
        drawn = vocabulary_sizes(self.model)[0] if call.config.do_sample else 0
        ends = bool(lengths.stop is not None or lengths.confidence)
        if ends and device_of(draft).type not in RECORDERS:  # there a look costs nothing, and a token in vain a forward
            return None
        return FixedSampler(drawn, ends, call.processors, settings, vocabulary)

    def _obstacle(self) -> str | None:
        """Say why the target's cache can't be static; None where it can."""
        model, call, kind, cache = self.model, self.call, self.kind, self.call.cache
        if model.config.is_encoder_decoder:
            return f"{type(model).__name__} has an encoder"
        if is_offloaded_cache(cache):
            return "it is offloaded"
        if self.config.rule.unverified_drafting is not None:
            return f"the rule {self.config.rule.name!r} drafts any number of tokens"
        if "static" not in kind.gives:
            return "its drafter may want to see the target's inputs and outputs"
        if belongs_to_user(cache) and not isinstance(cache, StaticCache):
            return f"`{CACHE}` is a {type(cache).__name__}"
        if self._before:
            return "`input_ids` lacks the tokens that it holds, or new ones after them (the whole text works)"
        if belongs_to_user(cache) and not rewinds(cache):
            return f"it has layers that can't be rolled back by position ({obstacles.kinds_of(cache)})"
        room = call.config.max_length + self._of_target.room
        if belongs_to_user(cache) and self.config.tree is not None and StaticCacheSlot(cache).capacity < room:
            return f"trees need {room} slots, and it has fewer"
        if call.batch > 1 or kind.reads:
            obstacle = obstacles.to_filling(model)
            if obstacle is not None:
                return obstacle
        if kind.reads and (decoder_layers(model) is None or "forward" in vars(model.get_decoder())):
            return f"the states between the layers of {type(model).__name__} can't be returned"
        return obstacles.to_static(model) or obstacles.to_inputs(call)

    def _ways(self, runner: FixedRunner, path: Path) -> list[Compiling | Recording]:
        """Return how forwards may be prepared, the best way first: what is compiled is recorded, too, if it can be."""
        given, recorder = self.call.config.compile_config, RECORDERS.get(runner.device.type)
        if path is not Path.COMPILED:
            return [Recording(recorder)]
        # Graphs refer to their cache, and so would keep a cache that is the caller's. Where a device waits for Python,
        # what no graph records is compiled whole: Python runs between layers.
        records_itself = given is not None and given.backend == "cudagraphs"
        if runner.fixed.keeps_cache or records_itself or obstacles.to_recording(runner.model, self.call) is not None:
            return [(compiling if recorder is None else Compiling)(given)]
        return [CompiledRecording(recorder, given), Compiling(given)]

    def _failed(self, runner: FixedRunner, path: Path, widths: Widths, asked: bool) -> bool:
        """Compile or record a model's forwards; tell whether that is impossible, which is warned of."""
        name = type(runner.model).__name__
        filled = f"`{CACHE}` holds tokens already, which compiling would overwrite"
        obstacle = (
            obstacles.to_compiling(runner.model)
            or (obstacles.to_recording(runner.model, self.call) if path is not Path.COMPILED else None)
            or (filled if runner.fixed.slot.filled else None)
        )
        if obstacle is not None:
            if asked:
                _say(False, obstacle)
            return True
        for how in self._ways(runner, path):
            try:
                runner.fixed.prepare(runner, how, widths)
                return False
            except Exception as error:  # whatever a compiler, a backend or a model's code may raise
                runner.fixed.forget(runner)
                forget(runner.model)
                if how.records and not isinstance(error, torch.OutOfMemoryError):  # which may pass
                    obstacles.UNRECORDABLE.add(runner.model)
                reason = " ".join(str(error).strip().split("\n")[:2])
                what = "recorded as graphs" if how.records else "compiled"
                _say(False, f"{name} can't be {what} ({type(error).__name__}: {reason})", not how.records)
        return True


def _say(static: bool, obstacle: str, compiles: bool = True) -> None:
    what = "a static cache" if static else "`compile` in `lossy_config`" if compiles else "recording graphs"
    warn_once(f"{what} has no effect here: {obstacle}. Decoding goes on without it.")
