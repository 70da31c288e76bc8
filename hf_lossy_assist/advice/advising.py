"""Advising: the target answers, both models read, and every rule replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..acceptors import Acceptor
from ..call.config import LossyConfig
from ..call.spelling import Spelling, split
from ..drafting.model import check_draft_model
from ..errors import LossyUnsupportedError, LossyValueError, need
from ..evaluation.costs import GAMMAS as TIMED
from ..evaluation.costs import KEEP_ALL, Costs, measure_costs
from ..evaluation.modes import EVERYTHING, DecodingMode, Models, parse_modes
from ..evaluation.requests import Ending, batches_of, run_request
from ..heads import Head
from ..values import Rule
from .advice import Advice, Replayed
from .laws import Laws, processors_of, read_laws
from .replay import Walk, greedy, rounds

GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Draft lengths among which each rule's best is looked for."""

GREEDY = "near_top,min_p,regret,margin,topk,typical,relaxed:top_n=2:delta=0.2,fsd,fly,lenience,ensemble"
"""The rules that are compared by default in greedy decoding; ``lossless`` and ``everything`` always are."""

_GAMMAS = Rule("a list of different ints from 1 to 64", lambda x: len({*x}) == len([*x]) and all(
    type(gamma) is int and 1 <= gamma <= 64 for gamma in x
))  # fmt: skip


@dataclass(frozen=True, eq=False)
class Advising:
    """What advice is about: models, prompts, rules, and how tokens are chosen."""

    models: Models
    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[Sequence[int]]
    modes: str = ""
    gammas: tuple[int, ...] = ()
    max_new_tokens: int = 256
    ends: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float = 1.0
    seed: int = 0
    tune: bool = False
    track: Callable[..., Iterable[Any]] = field(default=lambda items, description="": items)

    def __post_init__(self) -> None:
        _GAMMAS.check("gammas", self.gammas)
        if not self.prompts:
            raise LossyValueError("`prompts` has to hold at least one prompt, but is empty")
        if not isinstance(self.models.draft, PreTrainedModel):
            raise LossyUnsupportedError(
                f"`draft` has to be a model with the target's tokenizer, but is {type(self.models.draft).__name__}; "
                "compare other drafters by `lossy-assist evaluate`"
            )
        check_draft_model(self.models.target, self.models.draft)

    @property
    def plain(self) -> DecodingMode:
        """The target alone."""
        return DecodingMode(temperature=self.temperature, top_p=self.top_p)

    def run(self) -> Advice:
        """Let the target answer, read the answers, time the models, and replay every rule."""
        rules = self._rules()
        answers = list(self.track(self._answers(), total=len(self.prompts), description="answering"))
        laws = Laws.of([text for _, text in answers], self.max_new_tokens)
        tokens = laws.lengths.double().numpy()
        length = float(np.mean([len(prompt) for prompt in self.prompts]) + tokens.mean() / 2)
        costs = self._costs(answers[0][0], round(length))
        replayed = [
            self._replay(mode, rule, laws) for mode, rule in self.track(rules, description="replaying")
        ]  # fmt: skip
        lossless = greedy(rules[0][1], laws)
        keywords = self.plain.keywords(self.models, self.seed)
        decoding = {name: keywords[name] for name in ("do_sample", "temperature", "top_k", "top_p") if name in keywords}
        matches = float(lossless.keep[laws.real.numpy()].mean())

        def keeping(share: float) -> dict[int, Walk]:
            return {gamma: lossless.keeping(share).walk(laws, gamma) for gamma in GAMMAS}

        return Advice(replayed, tokens, length, costs, matches, keeping, decoding)

    def _rules(self) -> list[tuple[DecodingMode, Acceptor]]:
        """Return the modes and their rules, ``lossless`` first; a mode's draft length is the one to show."""
        texts = [text.strip() for text in split(self.modes or GREEDY, ",")]
        found = {}
        for text in dict.fromkeys(("lossless", *texts, EVERYTHING)):
            (mode,) = parse_modes(text, None, self.temperature)
            if mode.rule is None:
                raise LossyValueError(
                    f"`modes` has to name rules, but has {text!r}; the target alone is in every table"
                )
            rule = LossyConfig.from_fields(mode.rule, dict(mode.settings), mode.head).rule
            label = str(replace(Spelling.read(text, "modes"), gamma=None))
            known = found.get(label, (mode, rule, ()))[2]
            found[label] = replace(mode, label=label), rule, (*known, *filter(None, [mode.gamma]))
        return [(replace(mode, gamma=shown), rule) for mode, rule, shown in found.values()]

    def _answers(self) -> Iterable[tuple[list[int], Mapping[str, Any]]]:
        """Yield each prompt with the target's answer, and the laws along the answer."""
        models, writer = self.models, replace(KEEP_ALL, rule="lossless", settings={}, temperature=self.temperature)
        ending = Ending(self.ends, self.tokenizer) if self.ends else None
        keywords = self.plain.keywords(models, self.seed)
        keywords = {name: x for name, x in keywords.items() if name not in ("lossy_mode", "return_dict_in_generate")}
        for batch in batches_of(self.prompts, device=models.target.device, seed=self.seed):
            prompt = batch.ids[0].tolist()
            response = run_request(
                models, replace(writer, top_p=self.top_p), replace(batch, ending=ending), self.max_new_tokens
            )
            answer = response.rows[0].tolist()
            laws = read_laws(
                models.target, models.draft, prompt, answer, processors_of(models.target, prompt, **keywords)
            )
            yield [*prompt, *answer], laws

    def _costs(self, text: Sequence[int], length: int) -> Costs:
        gammas, repeats = (TIMED, 4) if self.tune else ((0, 1, 5, 16, 32), 1)
        mode = replace(KEEP_ALL, temperature=self.temperature, top_p=self.top_p)
        return measure_costs(
            self.models, text, lengths=(length,), gammas=gammas, mode=mode, repeats=repeats,
            track=lambda turns: self.track(turns, description="timing"),
        )  # fmt: skip

    def _replay(self, mode: DecodingMode, rule: Acceptor, laws: Laws) -> Replayed:
        shown = mode.gamma or (self.gammas if mode.label != EVERYTHING else ())
        gammas = sorted({*GAMMAS, *shown})
        if rule.reads_draft:
            walks = {gamma: rounds(rule, laws, gamma) for gamma in gammas}
        else:
            alone = greedy(rule, laws)
            walks = {gamma: alone.walk(laws, gamma) for gamma in gammas}
        return Replayed(replace(mode, gamma=None), walks, tuple(shown))


def advise(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    *,
    modes: str | None = None,
    gammas: Sequence[int] = (),
    max_new_tokens: int = 256,
    heads: Mapping[str, Head] | None = None,
    draft_cost: float | None = None,
    tune: bool = False,
    seed: int = 0,
) -> Advice:
    """Predict how fast every rule would be with these models, here, and what it would change; no rule is run.

    The target answers the prompts. Each model reads the answers once, and every rule decides along them: a token that
    it keeps in place of the target's own counts as the target's. So rounds, kept tokens and the best draft length
    follow for each rule, within 1 to 2 % of what its own runs show. The speed follows from rounds that are timed here.

    Parameters
    ----------
    target, draft, tokenizer
        The models, which share the tokenizer.
    prompts
        Texts or lists of token ids, like those that the models will get; with a chat template, a text is the user's
        turn. A dozen give intervals of about 3 %.
    modes
        ``"RULE[+RULE][@GAMMA][:KEY=VALUE…],…"``; the usual rules by default.
    gammas
        Draft lengths to show; each rule's best by default.
    max_new_tokens
        The longest answer.
    heads
        Trained heads by the rule that uses them.
    draft_cost
        The time of a drafted token as a share of a token of the target alone, for other hardware; measured by default.
    tune
        Whether to time more draft lengths, more often.
    seed
        Of the first prompt; each further prompt adds one.

    Raises
    ------
    LossyValueError
        When an argument can't work; before any forward pass.
    LossyUnsupportedError
        When the draft does not share the target's tokenizer, or the extra ``lab`` is missing.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> prompts = [problem.prompt for problem in pair.task.examples("test", 2)]
    >>> advice = hf_lossy_assist.advise(pair.target, pair.draft, pair.tokenizer, prompts, modes="min_p@5,typical@5")
    >>> advice.best("typical").settings
    {'do_sample': False, 'lossy_mode': 'typical', 'num_assistant_tokens': 5}
    """
    need("lab", "`advise`")
    advising = Advising(
        Models(target, draft, dict(heads or {}), tokenizer=tokenizer), tokenizer,
        [encoded(prompt, tokenizer) for prompt in prompts], modes or "", tuple(gammas), max_new_tokens, seed=seed,
        tune=tune, track=lambda items, total=None, description="": logging.tqdm(items, total=total, desc=description),
    )  # fmt: skip
    advice = advising.run()
    return advice if draft_cost is None else advice.with_draft_cost(draft_cost)


def encoded(prompt: str | Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return a prompt's token ids; with a chat template, a text is the user's turn."""
    if not isinstance(prompt, str):
        return list(prompt)
    if not tokenizer.chat_template:
        return tokenizer(prompt)["input_ids"]
    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]
