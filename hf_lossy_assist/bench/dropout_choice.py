"""Which dropout probability suits DropMatch: accuracy and kept tokens, end to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..pairs import Pair
from ..pairs.evaluation import MAX_NEW_TOKENS
from .runs import Setting, pool, respond, tokenize

DROPOUTS = tuple(round(0.05 * i, 2) for i in range(1, 11))


@dataclass(frozen=True)
class DropoutChoice:
    """DropMatch at one setting, on a task whose answers can be judged.

    Attributes
    ----------
    criterion, dropout
        The rule's setting; ``dropout`` 0 is lossless decoding.
    problems, accuracy
        How many problems were put, and the share answered right.
    mean_accepted, tokens_per_round
        Drafted tokens kept, and tokens emitted, per round.
    accepted_lossy
        Share of the kept tokens that the lossless rule would have rejected.
    """

    criterion: str
    dropout: float
    problems: int
    accuracy: float
    mean_accepted: float
    tokens_per_round: float
    accepted_lossy: float


def dropout_choices(
    pair: Pair,
    dropouts: Iterable[float] = DROPOUTS,
    criteria: Iterable[str] = ("js", "naive"),
    *,
    num_paths: int = 5,
    problems: int = 100,
    split: str = "validation",
    gamma: int = 8,
    seed: int = 0,
) -> Iterator[DropoutChoice]:
    """Measure greedy DropMatch end to end; the lossless run comes first.

    Parameters
    ----------
    pair
        Target, draft, tokenizer and task.
    dropouts, criteria, num_paths
        The rule's settings; all combinations of the first two are run.
    problems, split
        The first ``problems`` of a split: a choice must not be made on test problems.
    gamma
        Drafted tokens per round.
    seed
        Problem ``i`` is answered with ``seed + i``, under every setting.
    """
    examples = pair.task.examples(split, problems)
    prompts = tokenize(pair.tokenizer, (example.prompt for example in examples), pair.target.device)
    dropouts = list(dropouts)
    for criterion, dropout in [("js", 0.0), *((criterion, rho) for criterion in criteria for rho in dropouts)]:
        config = {"criterion": criterion, "dropout": dropout, "num_paths": num_paths}
        setting = Setting("dropmatch", config)
        responses = [
            respond(pair.target, pair.draft, prompt, setting, gamma=gamma, max_new_tokens=MAX_NEW_TOKENS, seed=seed + i)
            for i, prompt in enumerate(prompts)
        ]
        texts = pair.tokenizer.batch_decode([r.tokens for r in responses], skip_special_tokens=True)
        right = [
            pair.task.equivalent(pair.task.extract_answer(text), example.answer)
            for text, example in zip(texts, examples, strict=True)
        ]
        stats = pool(r.stats for r in responses)
        yield DropoutChoice(
            criterion=criterion,
            dropout=dropout,
            problems=len(examples),
            accuracy=sum(right) / len(right),
            mean_accepted=stats.mean_accepted,
            tokens_per_round=stats.tokens_per_round,
            accepted_lossy=stats.accepted_lossy / max(1, stats.accepted),
        )
