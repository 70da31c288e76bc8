"""Lossy rules inside transformers' own assisted generation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from ..acceptors import decide
from ..compat.drafters import DRAFTERS_WITHOUT_LOGITS, drafts_from_target_states, intercepted_drafter
from ..compat.inputs import ending_tokens, text_prefix
from ..compat.models import compiles_by_itself, device_of, innermost, shared_seed, unwrap
from ..core.distributions import Randomness
from ..core.limits import BoundLimits
from ..core.messages import Commit, Draft, RowDecision
from ..core.recorders import StatsRecorder
from ..core.statistics import LossyStats
from ..decoding.inspector import with_scores
from ..drafting import Drafter
from ..drafting.chain import Sampler
from ..drafting.draft_ends import check_num_tokens
from ..drafting.vocabulary import vocabulary_of
from ..errors import LossyUnsupportedError, LossyValueError, warn_once
from ..generation.checks import check_grammar, check_mode, check_processors
from ..generation.config import GivenFields, LossyConfig
from ..generation.drafter_choice import check_drafter, lengths_of
from ..generation.drafters.base import Asked, Kind
from ..generation.drafters.draft_model import DraftModel, ModelSource, draft_runner
from ..generation.drafters.generators import GeneratorDrafter
from ..generation.prepared import mask_of
from ..models.own_states import with_own_states
from ..models.target import TargetReader

_UNKNOWN_DISTRIBUTION = (
    "the rule {!r} needs the draft's distribution or states, and transformers' drafter may draw from another "
    "distribution than it reports; pass `assistant_model` to LossyVerification too"
)
_UNSUPPORTED = {
    "compile": "can't compile a forward that a rule reads",
    "tree": "verifies only chains",
    "stop_drafting": "ends drafts by itself, by `assistant_confidence_threshold`",
    "certificate": "decides about drafts and draws by itself",
}


class LossyVerification(LogitsProcessor):
    """A rule as a logits processor: transformers' assisted generation keeps what the rule keeps.

    When transformers asks for the first position of a round, the acceptors of our own loop decide all positions at
    once. Each position's logits are then rewritten so that transformers selects the decided token.

    Parameters
    ----------
    mode
        The rule, or rules, as in ``lossy_mode``.
    target
        The model whose ``generate()`` is called inside the ``with`` block, in the same thread.
    assistant_model
        Draft with this model through our own drafter, which reports the distribution q of its tokens. Rules that read q
        need it. Without it transformers' drafter is used.
    num_assistant_tokens
        γ of our own drafter; by default the models' own, or as long as the draft is sure, as in ``generate()``. Their
        ``num_assistant_tokens_schedule`` and ``assistant_confidence_threshold`` count, too.
    lossy_head
        The trained head of a rule that uses one, as for ``generate()``.
    tokenizer
        Needed by a ``scope`` whose markers are texts.
    **config
        The rule's settings, as in ``lossy_config``.

    Raises
    ------
    LossyValueError
        For a bad mode or setting, and for a rule that needs q without ``assistant_model``.

    Examples
    --------
    >>> from hf_lossy_assist import LossyVerification, pairs
    >>> pair = pairs.load("arithmetic")
    >>> inputs = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt")
    >>> with LossyVerification("topk", pair.target, k=3) as hook:
    ...     ids = pair.target.generate(**inputs, assistant_model=pair.draft, logits_processor=[hook])
    >>> hook.stats.rounds > 0
    True
    """

    def __init__(
        self,
        mode: Any,
        target: PreTrainedModel,
        *,
        assistant_model: PreTrainedModel | None = None,
        num_assistant_tokens: int | str | None = None,
        lossy_head: Any = None,
        tokenizer: Any = None,
        **config: Any,
    ) -> None:
        self.target = unwrap(target, "target")
        self.config = LossyConfig.from_fields(mode, config, lossy_head, device=device_of(self.target))
        self.tokenizer = tokenizer
        self.config.limits.bind(tokenizer)  # refuses unknown markers
        self.kind: Kind | None = None
        self._rounds: _TransformersRounds | None = None
        self._exit = ExitStack()
        self._thread = 0
        acceptor = self.config.rule
        for name, why in _UNSUPPORTED.items():
            if getattr(self.config, name):
                raise LossyUnsupportedError(
                    f"`{name}` is set, but transformers' assisted generation {why}; use enable() and `lossy_config`"
                )
        if acceptor.unverified_drafting is not None:
            raise LossyUnsupportedError(
                f"the rule {acceptor.name!r} commits tokens without the target, which transformers' assisted "
                f"generation can't do; use enable() and `lossy_mode` {acceptor.name!r}"
            )
        if acceptor.needs & {"draft_probs", "draft_hidden"} and assistant_model is None:
            raise LossyValueError(_UNKNOWN_DISTRIBUTION.format(acceptor.name))
        if assistant_model is not None:
            self.kind = self._drafts_with(assistant_model, num_assistant_tokens)
        elif num_assistant_tokens is not None:
            raise LossyValueError(
                f"`num_assistant_tokens` {num_assistant_tokens!r} is for our own drafter; pass `assistant_model` to "
                "LossyVerification too, or set it in the assistant's `generation_config`, where transformers reads it"
            )
        else:
            acceptor.check_models(self.target, None)

    def _drafts_with(self, assistant: Any, num_assistant_tokens: int | str | None) -> Kind:
        inner = innermost(assistant)
        if not isinstance(inner, PreTrainedModel) or drafts_from_target_states(inner):
            raise LossyValueError(
                "`assistant_model` has to be a transformers model that drafts by itself, but is a "
                f"{type(assistant).__name__}; use enable() for heads"
            )
        given = GivenFields(self.target, {"num_assistant_tokens": num_assistant_tokens})
        kind = DraftModel(Asked(self.target, self.config, lengths_of(given, assistant, self.config), assistant))
        check_num_tokens(kind.lengths.num_assistant_tokens)
        check_drafter(kind)
        return kind

    @property
    def stats(self) -> LossyStats | None:
        """Statistics of the last ``generate()`` call, even of an unfinished one."""
        return None if self._rounds is None else self._rounds.stats.finish()

    def __enter__(self) -> LossyVerification:
        with ExitStack() as stack:
            stack.enter_context(intercepted_drafter(self.target, self._intercept))
            stack.callback(self.target.register_forward_pre_hook(self._before, with_kwargs=True).remove)
            stack.callback(self.target.register_forward_hook(self._after).remove)
            self._exit = stack.pop_all()
        self._thread = threading.get_ident()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._rounds is not None:
            self._rounds.abort()
        self._exit.close()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._rounds is None or self._rounds.draft is None:
            raise LossyValueError(
                "`logits_processor` holds a LossyVerification, but no tokens are drafted; call generate() inside its "
                "`with` block and with an `assistant_model` (or `prompt_lookup_num_tokens`)"
            )
        return self._rounds.rewrite(input_ids, scores)

    def _intercept(self, build: Callable[..., CandidateGenerator], **given: Any) -> CandidateGenerator:
        """Start a generation's rounds in place of its drafter."""
        names = ("generation_config", "input_ids", "logits_processor", "model_kwargs")
        generation_config, input_ids, logits_processor, model_kwargs = (given[name] for name in names)
        if self._rounds is not None:
            self._rounds.abort()
        others = LogitsProcessorList(processor for processor in logits_processor if processor is not self)
        if len(others) == len(logits_processor):
            raise LossyValueError(
                "generate() was called inside a LossyVerification block without it; pass `logits_processor=[hook]`"
            )
        check_processors("LossyVerification", others)
        others = with_own_states("LossyVerification", others, input_ids.shape[1])
        # The loop asks them about rejected tokens too, in the list that it has handed over.
        own = iter(others)
        logits_processor[:] = [processor if processor is self else next(own) for processor in logits_processor]
        if compiles_by_itself(self.target, model_kwargs, generation_config):
            # The rule reads the forward through hooks, which a compiled one passes over.
            warn_once(
                "compiling on a static cache has no effect inside a LossyVerification. Decoding goes on without it; "
                "use enable() and `compile` in `lossy_config` to compile."
            )
            generation_config.disable_compile = True
        structured = check_grammar(self.config, others, generation_config.do_sample)
        check_mode(self.config, generation_config.do_sample, self.kind and self.kind.longest)
        randomness = Randomness(shared_seed(self.target, self.config.seed))
        acceptor, generator, most = self.config.rule, None, generation_config.max_length
        if self.kind is None:
            generator = build(**{**given, "logits_processor": others})
            drafter = GeneratorDrafter(generator, acceptor, model_kwargs)
        else:
            draft = self.kind.model
            runner, own = draft_runner(draft, mask_of(input_ids, model_kwargs), most), vocabulary_of(self.target, draft)
            drafter = self.kind.chains(
                ModelSource(runner, own, self.kind.asked.keep_hidden),
                Sampler(others, generation_config.do_sample, randomness),
            )
        known = self.kind is not None or isinstance(generator, DRAFTERS_WITHOUT_LOGITS)
        if "draft_or_point_mass" in acceptor.needs and not known:
            raise LossyValueError(_UNKNOWN_DISTRIBUTION.format(acceptor.name))
        reader = TargetReader(self.target, others, acceptor, generation_config.do_sample, randomness)
        stats = StatsRecorder(acceptor.is_lossless(generation_config.do_sample))
        self._rounds = _TransformersRounds(
            drafter,
            generator,
            most,
            reader,
            stats,
            self.config.limits.bind(self.tokenizer, structured),
            input_ids.shape[1],
            ending_tokens(generation_config),
            self.config.inspect,
        )
        return self._rounds

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if self._rounds is None or threading.get_ident() != self._thread:
            return None
        prefix = text_prefix(self.target)
        ids, mask = (kwargs.get(f"{prefix}{name}") for name in ("input_ids", "attention_mask"))
        room = self._rounds.enter_forward(0 if ids is None else ids.shape[1], mask)
        if room == 1 or "logits_to_keep" not in kwargs:
            return None
        return args, {**kwargs, "logits_to_keep": kwargs["logits_to_keep"] + room - 1}

    def _after(self, module: Any, args: Any, outputs: Any) -> None:
        if self._rounds is not None and threading.get_ident() == self._thread:
            self._rounds.leave_forward(outputs)


@dataclass(eq=False)
class _TransformersRounds(CandidateGenerator):
    """Stands between transformers' loop and its drafter, and knows where in a round the loop is.

    The loop asks for candidates, runs the target's forward over them, asks the processors once per position, and
    reports the committed tokens; each of these is one step here.
    """

    drafter: Drafter
    generator: CandidateGenerator | None  # that drafts, if one does
    longest: int  # that the text may get
    reader: TargetReader
    stats: StatsRecorder
    limits: BoundLimits | None
    prompt: int  # its length
    ending: Container[int]  # tokens that end a text
    inspected: bool
    committed: int = 0
    candidate: Tensor | None = None
    draft: Draft | None = None
    logits: tuple[Tensor, Tensor | None] | None = None
    decision: RowDecision | None = None
    sent: int = 0
    lossy: int = 0  # tokens kept lossily so far
    charged: float = 0.0  # what they cost a rule with a budget

    def __post_init__(self) -> None:
        self.requires_model_outputs = self.generator is not None and self.generator.requires_model_outputs

    @property
    def model_kwargs_overrides(self) -> dict[str, Any]:
        return {} if self.generator is None else self.generator.model_kwargs_overrides

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        self.draft = self.logits = self.decision = None
        ids = input_ids.to(device_of(self.reader.model))
        self.stats.start()
        if self.generator is None:
            self.draft = self.drafter.propose(ids, None, [self.longest - ids.shape[1]])
        else:
            self.draft = self.drafter.ask(ids, 2**31, **kwargs)
        self.stats.draft_work(self.draft.cost, [0])
        self.stats.lap("drafting")
        # A copy of our own: see `rewrite`.
        self.candidate = torch.cat([ids, self.draft.tokens], dim=-1)
        self.committed = input_ids.shape[1]
        # Everything is drawn here: without q, transformers compares its selection with the candidate.
        return self.candidate, None

    def enter_forward(self, tokens: int, mask: Tensor | None) -> int:
        """Read the LM head's input in the target's forward over the draft, if the rule wants to.

        Return at how many positions before the draft's the head has to be called.
        """
        self.sent = tokens
        if self.draft is None or self.logits is not None:
            return 1
        drafted = len(self.draft)
        padding = None if mask is None or mask.dim() != 2 else mask[:, : mask.shape[1] - drafted]
        room = self.reader.hook.wanted(padding, 1, max(1, tokens - drafted))
        self.stats.start()
        self.reader.hook.over(drafted).__enter__()  # no stack: an interruption could come before it knows the hook
        return room

    def leave_forward(self, outputs: Any) -> None:
        """Take the forward's logits, and leave only the expected ones to transformers' loop."""
        if self.draft is None or self.logits is not None:
            return
        self.reader.hook.__exit__()
        self.stats.lap("verifying")
        self.stats.target_call(self.sent, [0], 1)
        clean, dropped = self.reader.hook.split(outputs.logits, len(self.draft))
        if dropped is not None:
            outputs.logits = clean
        # Other processors may overwrite these logits before the first position is asked for.
        self.logits = clean.clone(), dropped

    def rewrite(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores of one position such that transformers selects the decided token."""
        if self.decision is None:
            self._decide(scores.device)
        position = input_ids.shape[1] - self.committed
        if position == len(self.draft):
            self._mismatch(scores.shape[-1])
        if position > self.decision.n_accepted:
            return scores
        token = self.decision.tokens[position]
        certain = torch.full_like(scores, -torch.inf)
        certain[:, token] = 0.0
        if self.reader.do_sample:
            return certain
        return torch.where(scores.argmax(-1, keepdim=True) == token, scores, certain)

    def _mismatch(self, vocabulary: int) -> None:
        """Let the candidate differ from the decision where transformers' loop has to stop.

        The loop compares its selection with the candidate. A correction may pick the rejected token, which would count
        as a match; and not every version stops at an end inside a draft by itself.
        """
        tokens, n_accepted = self.decision.tokens, self.decision.n_accepted
        last = next((i for i, token in enumerate(tokens[:n_accepted]) if token in self.ending), n_accepted)
        if last < len(self.draft):
            self.candidate[:, self.committed + last] = (tokens[last] + 1) % vocabulary

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        committed = input_ids.shape[1] - self.committed
        self.lossy += self.stats.rows[0].add(self.decision, committed)
        self.charged += self.decision.charge
        own = {"rows": (0,), "padding": (0,), "counts": (committed,), "accepted": (num_matches,)}
        self.drafter.observe(Commit(ids=input_ids, start=self.committed, drafted=len(self.draft), logits=scores, **own))
        self.stats.stop()
        self.draft = None

    def abort(self) -> None:
        """Stop watching, wherever in a round the loop was left."""
        self.reader.hook.__exit__()
        self.draft = None

    def _decide(self, device: torch.device) -> None:
        self.stats.start()
        clean, dropped = self.logits
        logits = clean.to(device=device, dtype=torch.float32)
        verification = self.reader.answer(self.candidate, self.draft, logits, dropped)
        if self.reader.acceptor.has_budget:
            verification = replace(verification, charged=[self.charged])
        positions = None
        if self.limits is not None:
            generated = [self.committed - self.prompt]
            prompt = self.candidate[:, : self.prompt]
            positions = self.limits.lossless_positions(
                self.candidate, self.draft.shape, generated, [self.lossy], prompt
            )
        decision = decide(self.reader.acceptor, verification, positions)
        decisions = decision.to_host(self.draft)
        if self.inspected:
            decisions = with_scores(decisions, self.reader.acceptor, verification, decision)
        (self.decision,) = decisions
        self.stats.lap("deciding")
