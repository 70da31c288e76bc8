"""Which dropout probability suits DropMatch: accuracy and kept tokens, end to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hf_lossy_assist.core.statistics import joined
from hf_lossy_assist.evaluation.comparison import texts_of
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.pairs import Pair

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
    prompts = [pair.task.encode(example, pair.tokenizer) for example in examples]
    batches, models = batches_of(prompts, device=pair.target.device, seed=seed), Models(pair.target, pair.draft)
    dropouts = list(dropouts)
    for criterion, dropout in [("js", 0.0), *((criterion, rho) for criterion in criteria for rho in dropouts)]:
        config = {"criterion": criterion, "dropout": dropout, "num_paths": num_paths}
        mode = DecodingMode("dropmatch", "dropmatch", config, gamma)
        responses = [run_request(models, mode, batch, pair.task.max_new_tokens) for batch in batches]
        texts = pair.tokenizer.batch_decode(texts_of(responses), skip_special_tokens=True)
        right = [pair.task.correct(example, text) for example, text in zip(examples, texts, strict=True)]
        stats = joined([response.stats for response in responses])
        yield DropoutChoice(
            criterion=criterion,
            dropout=dropout,
            problems=len(examples),
            accuracy=sum(right) / len(right),
            mean_accepted=stats.mean_accepted,
            tokens_per_round=stats.tokens_per_round,
            accepted_lossy=stats.accepted_lossy / max(1, stats.accepted),
        )
