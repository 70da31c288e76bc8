"""From the options of ``lossy-assist mine`` to what is mined, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import LossyValueError
from ..mining.api_writer import ApiWriter, Completions
from ..mining.choice import Choice, Greedy, GumbelMax
from ..mining.draft_argmax import DraftArgmax
from ..mining.judge_labels import JudgeMiner
from ..mining.local_writer import LocalWriter
from ..mining.prompt_results import Miner
from ..mining.ratio_labels import RatioMiner
from ..mining.reading import check
from ..mining.searches import Searches
from ..mining.writing import ResponseLimits, Writer, eos_of
from .models import LoadedModels

Labels = Literal["judge", "ratio"]


@dataclass(frozen=True)
class MiningOptions:
    """The options as they were given; see the command's help."""

    labels: Labels = "judge"
    split: str = "train"
    batch_size: int = 32
    max_new_tokens: int = 160
    sampling: bool = False
    temperature: float | None = None
    seed: int = 0
    folds: int = 5
    features_target: bool = False
    rows_per_kind: int = 8
    task_workers: int = 0
    target_api: str | None = None
    target_api_model: str | None = None
    target_api_timeout: float = 120.0
    task_data: str | None = None
    task_options: Sequence[str] = ()

    def check(self) -> None:
        """Refuse what does not go together, before anything is loaded."""
        if self.temperature is not None and not self.draws:
            raise LossyValueError(
                f"`--temperature` counts only with `--sampling`; add it, or leave out {self.temperature}"
            )
        if self.temperature is not None and not self.temperature > 0:
            raise LossyValueError(f"`--temperature` has to be a number > 0, but is {self.temperature}")
        if (self.target_api is None) != (self.target_api_model is None):
            raise LossyValueError("`--target-api` and `--target-api-model` have to be given together")
        if self.target_api is not None and self.draws:
            raise LossyValueError(
                "`--target-api` gives greedy text only: leave out `--sampling`; `--labels ratio` needs `--model`"
            )

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn; ratios are about draws by nature."""
        return self.sampling or self.labels == "ratio"

    def choice(self) -> Choice:
        """Return how tokens are chosen."""
        return GumbelMax(self.seed, 1.0 if self.temperature is None else self.temperature) if self.draws else Greedy()

    def compared(self, loaded: LoadedModels) -> dict[str, Any]:
        """Return what has an influence on the data, and has to be the same when a run is continued."""
        choice = self.choice()
        return {
            "split": self.split,
            "max_new_tokens": self.max_new_tokens,
            "folds": self.folds,
            "dtype": {role: str(model.dtype).removeprefix("torch.") for role, model in loaded.by_role.items()},
            "decoding": "greedy" if choice == Greedy() else {"temperature": choice.temperature, "seed": choice.seed},
            "task_data": self.task_data,
            "task_options": list(self.task_options),
            "target_api_model": self.target_api_model,
            **self._of_kind(),
        }

    def _of_kind(self) -> dict[str, Any]:
        if self.labels == "ratio":
            return {"rows_per_kind": self.rows_per_kind}
        return {"features_target": self.features_target}


def check_readable(loaded: LoadedModels) -> None:
    """Refuse models that mining can't read.

    Raises
    ------
    LossyValueError
        When the models don't share a tokenizer.
    LossyUnsupportedError
        When a model's cache can't be cut back.
    """
    for model in loaded.by_role.values():
        check(model)
    sizes = {role: model.config.get_text_config(decoder=True).vocab_size for role, model in loaded.by_role.items()}
    if min(sizes.values()) < len(loaded.tokenizer):
        raise LossyValueError(
            f"`--assistant` has to share the target's tokenizer, but that has {len(loaded.tokenizer)} tokens, and the "
            f"models have {sizes}"
        )


@dataclass(frozen=True, eq=False)
class MinerFactory:
    """Makes what mines, from options and loaded models."""

    options: MiningOptions
    cast: LoadedModels

    def miner(self) -> Miner:
        return {"judge": self._judge, "ratio": self._ratio}[self.options.labels]()

    def searches(self) -> Searches:
        options, cast = self.options, self.cast
        guesser = DraftArgmax(cast.draft, options.choice())
        return Searches(self._writer(), guesser, cast.task, self._decode, options.batch_size, options.task_workers)

    def _judge(self) -> JudgeMiner:
        positions = ("previous", "draft", "target") if self.options.features_target else ("previous", "draft")
        return JudgeMiner(self.searches(), self.cast.by_role, dict.fromkeys(self.cast.by_role, positions))

    def _ratio(self) -> RatioMiner:
        options, cast = self.options, self.cast
        return RatioMiner(
            cast.target, cast.draft, self._limits(), options.choice(), options.batch_size, options.rows_per_kind
        )

    def _writer(self) -> Writer:
        options, cast = self.options, self.cast
        if options.target_api is None:
            return LocalWriter(cast.target, options.batch_size, self._limits(), options.choice())
        completions = Completions(options.target_api, options.target_api_model, options.target_api_timeout)
        return ApiWriter(completions, cast.task, cast.tokenizer, self._limits(), options.batch_size)

    def _limits(self) -> ResponseLimits:
        # Behind an API, whatever ends the target's texts comes out as the tokenizer's own end.
        ends = eos_of(self.cast.target or self.cast.draft)
        behind = self.options.target_api is not None and self.cast.tokenizer.eos_token_id is not None
        return ResponseLimits(
            ends | {self.cast.tokenizer.eos_token_id} if behind else ends, self.options.max_new_tokens
        )

    def _decode(self, ids: Any) -> str:
        return self.cast.tokenizer.decode(ids, skip_special_tokens=True)
