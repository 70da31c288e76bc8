"""The function ``evaluate``: models and modes in, a result out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import tasks
from ..errors import LossyValueError, brief, need
from ..heads import Head
from ..pairs import Pair
from ..store.folder import this_process
from ..tasks import Task
from ..values import ONE_OR_MORE
from .evaluation import Evaluation
from .modes import DecodingMode, modes_of
from .result import EvaluationResult


def reference_of(modes: Sequence[DecodingMode]) -> str:
    """Return the label to compare with: the target alone's, else lossless's, else the first."""
    alone = (mode.label for mode in modes if mode.gamma is None and mode.answers == "target" and not mode.settings)
    lossless = (mode.label for mode in modes if mode.rule == "lossless")
    return next(alone, None) or next(lossless, None) or modes[0].label


def evaluate(
    target: PreTrainedModel,
    draft: PreTrainedModel | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | str,
    modes: str | Sequence[str | DecodingMode] = "plain,lossless",
    heads: Mapping[str, Head] | None = None,
    reference: str | None = None,
    limit: int = 100,
    split: str = "test",
    batch_size: int = 1,
    gamma: int | str = 5,
    prompt_lookup_num_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float = 1.0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> EvaluationResult:
    """Let several decoding modes answer the same problems, and compare their scores and speeds problem by problem.

    Parameters
    ----------
    target, draft, tokenizer
        The models, which share the tokenizer. Without a draft only the target alone can run.
    task
        A task, or a name for :func:`hf_lossy_assist.tasks.load`.
    modes
        ``"plain,stock,RULE[+RULE][@GAMMA][:KEY=VALUE…],…"``, as for ``lossy-assist evaluate --modes``, or a list of
        such; ``all`` stands for ``lossless`` and every rule that can differ from it here.
    heads
        Trained heads by the rule that uses them.
    reference
        The mode to compare with: the target alone by default, else lossless, else the first.
    limit, split, batch_size
        The number of problems, the task's split, and how many are answered together.
    gamma
        Drafted tokens per round for modes that do not say.
    temperature, top_p
        Of sampling, with no other warper; without a temperature, decoding is greedy.
    prompt_lookup_num_tokens
        Up to so many tokens are looked up in the text, where that promises more than the draft's γ. Without a draft
        they replace ``gamma``.
    max_new_tokens
        The longest response; the task's by default.
    seed
        Of the first problem; each further problem adds one.
    out
        A folder for ``results.jsonl`` and ``summary.json``; an interrupted run continues there.

    Returns
    -------
    EvaluationResult
        The answers, and each mode's :class:`~hf_lossy_assist.evaluation.scores.ModeScore` by label.

    Raises
    ------
    LossyValueError
        If an argument or a mode can't work; before any problem is answered.
    LossyUnsupportedError
        Without the extra ``lab``.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> result = hf_lossy_assist.evaluate(
    ...     pair.target, pair.draft, tokenizer=pair.tokenizer, task=pair.task, modes="plain,dropmatch", limit=1
    ... )
    >>> result.modes["dropmatch"].n, result.modes["dropmatch"].difference
    (1, 0.0)
    """
    need("lab", "`evaluate`")
    if prompt_lookup_num_tokens is not None:
        ONE_OR_MORE.check("prompt_lookup_num_tokens", prompt_lookup_num_tokens)
        gamma = gamma if draft is not None else prompt_lookup_num_tokens
    listed: list[DecodingMode] = []
    for mode in [modes] if isinstance(modes, str) else modes:
        listed += modes_of(mode, gamma, temperature, top_p, heads or {}) if isinstance(mode, str) else [mode]
    if wrong := [mode for mode in listed if not isinstance(mode, DecodingMode)]:
        raise LossyValueError(f"`modes` has to be a text or a list of modes, but has {brief(wrong[0])}")
    asked = tasks.load(task) if isinstance(task, str) else task
    if not isinstance(asked, Task):
        raise LossyValueError(
            f"`task` has to be a task or the name of one, but is a {type(asked).__name__}; write own prompts "
            "into a file, and take `tasks.load('prompts', 'prompts.txt')`"
        )
    evaluation = Evaluation(
        Pair(target, draft, tokenizer, asked, heads or {}, prompt_lookup_num_tokens or 0), listed,
        reference or reference_of(listed), limit, split, batch_size, max_new_tokens, seed, this_process(),
    )  # fmt: skip
    return evaluation.complete(None if out is None else Path(out))
