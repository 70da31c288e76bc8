"""``lossy-assist train eagle3`` and ``train assistant``: drafts for a target of one's own."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..errors import LossyValueError
from ..heads import ModelIdentity
from ..tasks import load as load_task
from .console import limit_threads
from .models import default_device, load_model, pretrained
from .options import Threads

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..training.drafts.draft_batches import DraftData
    from ..training.drafts.draft_objective import DraftObjective
    from ..training.drafts.draft_saving import TrainingRecord
    from ..training.drafts.draft_training import DraftTrainingSettings, HeldOut
    from ..training.drafts.text_store import TextStore
    from ..training.drafts.text_writing import TextSettings

_REPORT_EVERY, _TRAINING = 10, "training"  # steps between reports; where checkpoints and the log are, in OUT

Out = Annotated[Path, typer.Option(help="Folder for the draft, its checkpoints, and what it is trained from.")]
Model = Annotated[str | None, typer.Option(help="The target: a folder or a Hub id.")]
PairName = Annotated[str | None, typer.Option(help="A pair whose target it is, instead of --model.")]
Prompts = Annotated[
    Path | None, typer.Option(help="File of prompts, one a line, or .json or .jsonl; the target's own by default.")
]
TaskName = Annotated[str | None, typer.Option(help="Task whose training prompts to use instead.")]
Texts = Annotated[
    Path | None, typer.Option(help="Folder of the target's texts, OUT/texts by default; several drafts can share it.")
]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens of answers that the target writes before training begins.")]
TextsOnly = Annotated[bool, typer.Option("--texts-only", help="Let the target write, and don't train.")]
Rows = Annotated[int, typer.Option(min=1, help="Texts that the target writes at a time.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="The longest answer.")]
Temperature = Annotated[float, typer.Option(min=0.01, help="Of the prompts and answers that are drawn.")]
GreedyShare = Annotated[float, typer.Option(min=0, max=1, help="Share of the answers that are greedy.")]
StateGib = Annotated[float, typer.Option(min=0, help="Disk for the target's states; with 0 they are never kept.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps of the optimiser.")]
BatchTokens = Annotated[int, typer.Option(min=1, help="Tokens in a step, of each process.")]
LearningRate = Annotated[float, typer.Option(min=0, help="The highest learning rate.")]
Warmup = Annotated[int, typer.Option(min=1, help="Steps in which the learning rate rises.")]
Cooldown = Annotated[float, typer.Option(min=0, max=1, help="Share of the steps, at the end, in which it falls.")]
Float32 = Annotated[bool, typer.Option("--float32", help="Compute in float32 instead of bfloat16.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")]
MeasureEvery = Annotated[int, typer.Option(min=1, help="Steps between held-out measurements.")]
Name = Annotated[str | None, typer.Option(help="The target's name on the Hub, for the card.")]
License = Annotated[str | None, typer.Option(help="The draft's license, as the Hub calls it, for its card.")]
Device = Annotated[str | None, typer.Option(help="Where it runs; a GPU if there is one.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of texts, weights and order.")]


@dataclass(frozen=True)
class DraftTarget:
    """The target of a draft, and where its texts come from, as the options have named them."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str


@dataclass(frozen=True)
class DraftSources:
    """The options that say what a draft is trained from."""

    out: Path
    model: str | None
    pair: str | None
    prompts: Path | None
    task: str | None
    texts: Path | None
    tokens: int
    device: str | None
    name: str | None

    def check(self) -> None:
        """Refuse what does not go together, before anything is loaded."""
        if (self.model is None) == (self.pair is None):
            raise LossyValueError("either `--model` or `--pair` has to be given, and not both")
        if self.prompts is not None and self.task is not None:
            raise LossyValueError("`--prompts` and `--task` can't both be given")

    def load(self, accelerator: Accelerator) -> DraftTarget:
        """Load the target: a pair's in bfloat16, another as it is stored."""
        device = self.device or (str(accelerator.device) if accelerator.num_processes > 1 else default_device())
        if self.pair is not None:
            pair = pairs.load(self.pair, dtype=torch.bfloat16, device=device)
            target, tokenizer = pair.target, pair.tokenizer
        else:
            tokenizer = pretrained("--model", self.model, AutoTokenizer)
            target = load_model("--model", self.model, None, device)
        return DraftTarget(target, tokenizer, self.name or ModelIdentity.of(target).name)

    def write(
        self, target: DraftTarget, settings: TextSettings, accelerator: Accelerator, screen: Console, stopped: Callable
    ) -> TextStore:
        """Let the target write until there are enough texts."""
        from ..training.drafts import openings
        from ..training.drafts.text_run import TextProgress, write_until
        from ..training.drafts.text_store import TextStore

        if self.prompts is not None:
            texts = openings.read_prompts(self.prompts)
            source, found = self.prompts.name, openings.of_prompts(texts, target.tokenizer)
        elif self.task is not None:
            source, found = self.task, openings.of_task(load_task(self.task), target.tokenizer, 100_000)
        else:
            source, found = None, [openings.self_asked(target.tokenizer)]

        def show(progress: TextProgress) -> None:
            screen.print(
                f"texts: {progress.answer_tokens:,} of {self.tokens:,} tokens of answers, "
                f"{progress.tokens_per_second:.0f} tokens/s"
            )

        store = TextStore(self.texts or self.out / "texts")
        with accelerator.main_process_first():
            store.open(target.model, {"prompts": source, **asdict(settings)})
        write_until(
            self.tokens, store, target.model, target.tokenizer, found, settings, on_batch=show, stopped=stopped,
            process=accelerator.process_index, processes=accelerator.num_processes,
        )  # fmt: skip
        accelerator.wait_for_everyone()
        return store


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Inside the block, SIGTERM and SIGINT only make what is yielded True; a second one ends the process."""
    got: list[int] = []
    before = {}

    def handler(number: int, frame: Any) -> None:
        got.append(number)
        signal.signal(number, before[number])

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, handler)
    try:
        yield lambda: bool(got)
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _command() -> str:
    """Return the command line; of paths that only this machine has, the last part."""
    return shlex.join(["lossy-assist", *(Path(x).name if Path(x).is_absolute() else x for x in sys.argv[1:])])


def _report(screen: Console, steps: int) -> dict[str, Callable]:
    from ..training.drafts.draft_training import DraftProgress

    recent: list[float] = []

    def on_step(progress: DraftProgress) -> None:
        recent.append(progress.loss)
        if progress.step % _REPORT_EVERY == 0:
            screen.print(
                f"step {progress.step} of {steps}, epoch {progress.epoch}, {progress.tokens_seen:,} tokens seen, loss "
                f"{sum(recent) / len(recent):.4f}, learning rate {progress.learning_rate:.2e}, "
                f"{progress.tokens_per_second:.0f} tokens/s"
            )
            recent.clear()

    def on_measured(step: int, held_out: HeldOut) -> None:
        shares = ", ".join(f"{share:.3f}" for share in held_out.accuracies)
        screen.print(
            f"held out after step {step}: {held_out.kept:.3f} drafted tokens kept per round at γ = "
            f"{len(held_out.accuracies)} ({held_out.texts} greedy texts); right: {shares}; loss {held_out.loss:.4f}"
        )

    return {"on_step": on_step, "on_measured": on_measured}


@dataclass(frozen=True)
class DraftKind:
    """What differs between the kinds of drafts.

    Attributes
    ----------
    name
        What the command calls it.
    values
        Settings of its own.
    layers
        Returns the states of a target that it reads.
    objective
        Returns a new one for a target, and the data it is trained on.
    save
        Writes the finished draft.
    """

    name: str
    values: Mapping[str, Any]
    layers: Callable[[PreTrainedModel], tuple[int, ...]]
    objective: Callable[[DraftTarget, DraftData], DraftObjective]
    save: Callable[[DraftObjective, DraftTarget, Path, TrainingRecord], None]


@dataclass(frozen=True)
class DraftRun:
    """A run of one of the two commands, as the options that they share describe it."""

    sources: DraftSources
    writing: TextSettings
    settings: DraftTrainingSettings
    texts_only: bool
    state_gib: float
    batch_tokens: int
    checkpoint_seconds: float
    measure_every: int

    def go(self, kind: DraftKind, screen: Console) -> None:
        """Write texts, train, and save the draft."""
        from accelerate import Accelerator

        from ..training.drafts.draft_batches import DraftData
        from ..training.drafts.draft_saving import TrainingRecord
        from ..training.drafts.draft_training import DraftTraining
        from ..training.drafts.state_shards import StateShards

        self.sources.check()
        disable_progress_bar()
        accelerator = Accelerator(cpu=self.sources.device == "cpu")
        screen.quiet = not accelerator.is_main_process
        with _stopping() as stopped:
            target = self.sources.load(accelerator)
            store = self.sources.write(target, self.writing, accelerator, screen, stopped)
            if self.texts_only or stopped():
                return
            states = StateShards(
                store.folder, target.model, kind.layers(target.model), int(self.state_gib * 2**30), self.batch_tokens
            )
            data = DraftData(
                store, states, batch_tokens=self.batch_tokens, seed=self.writing.seed,
                process=accelerator.process_index, processes=accelerator.num_processes,
            )  # fmt: skip
            torch.manual_seed(self.writing.seed)
            objective = kind.objective(target, data).to(accelerator.device)
            run = {"draft": kind.name, "batch_tokens": self.batch_tokens, "processes": data.processes, **kind.values}
            training = DraftTraining(objective, data, self.settings, self.sources.out / _TRAINING, run, accelerator)
            if training.resume():
                screen.print(f"continuing after step {training.state.step}")
            held_out = training.train(
                checkpoint_seconds=self.checkpoint_seconds, measure_every=self.measure_every, stopped=stopped,
                **_report(screen, self.settings.steps),
            )  # fmt: skip
            if accelerator.is_main_process:
                said = {**store.manifest()["settings"], "answer_tokens": store.answer_tokens()}
                record = TrainingRecord(said, training.state.step, training.state.tokens_seen, held_out, _command())
                kind.save(objective, target, self.sources.out, record)
                screen.print(f"saved in {self.sources.out}")
            accelerator.end_training()


def eagle3(
    out: Out,
    model: Model = None,
    pair: PairName = None,
    prompts: Prompts = None,
    task: TaskName = None,
    texts: Texts = None,
    tokens: Tokens = 1_000_000,
    texts_only: TextsOnly = False,
    rows: Rows = 96,
    max_new_tokens: MaxNewTokens = 384,
    temperature: Temperature = 0.9,
    greedy_share: GreedyShare = 0.5,
    state_gib: StateGib = 10.0,
    vocabulary: Annotated[int, typer.Option(min=1, help="Tokens that the head can draft, the most frequent.")] = 6144,
    unrolled: Annotated[int, typer.Option(min=1, help="Drafted tokens in a row that it is trained on.")] = 3,
    single: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the steps, at the beginning, that train on one of them only.")
    ] = 0.5,
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Of what it reads, against learning by heart.")] = 0.1,
    steps: Steps = 2000,
    batch_tokens: BatchTokens = 8192,
    learning_rate: LearningRate = 1e-3,
    warmup: Warmup = 50,
    cooldown: Cooldown = 1.0,
    float32: Float32 = False,
    checkpoint_seconds: CheckpointSeconds = 180.0,
    measure_every: MeasureEvery = 100,
    name: Name = None,
    license: License = None,
    device: Device = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train an EAGLE-3 head for a target, and write it to OUT in the format of speculators and vLLM.

    The target writes texts first: answers to prompts of yours, or to its own, for which it plays the user of its chat
    template. From its states the head then learns its law, by the training-time test. Texts, states and checkpoints
    are in OUT; after SIGTERM, SIGINT or any kill the same command goes on. With `accelerate launch -m hf_lossy_assist
    train eagle3 …` many processes share the work.
    """
    from ..training.drafts.draft_saving import save_eagle3
    from ..training.drafts.draft_training import DraftTrainingSettings
    from ..training.drafts.eagle3_training import Eagle3Objective, new_eagle3, usual_layers
    from ..training.drafts.text_writing import TextSettings

    limit_threads(threads)
    kind = DraftKind(
        "eagle3",
        {"vocabulary": vocabulary, "unrolled": unrolled, "single": single, "dropout": dropout},
        usual_layers,
        lambda target, data: Eagle3Objective(
            new_eagle3(target.model, data.frequent(vocabulary, target.model), data.some_states(), target.name),
            target.model,
            unrolled,
            single=single,
            dropout=dropout,
        ),
        lambda objective, target, folder, record: save_eagle3(objective.head, folder, record, license),
    )
    DraftRun(
        DraftSources(out, model, pair, prompts, task, texts, tokens, device, name),
        TextSettings(rows, max_new_tokens, temperature=temperature, greedy_share=greedy_share, seed=seed),
        DraftTrainingSettings(steps, learning_rate, warmup, cooldown, bfloat16=not float32),
        texts_only, state_gib, batch_tokens, checkpoint_seconds, measure_every,
    ).go(kind, Console(soft_wrap=True))  # fmt: skip


def assistant(
    out: Out,
    model: Model = None,
    pair: PairName = None,
    prompts: Prompts = None,
    task: TaskName = None,
    texts: Texts = None,
    tokens: Tokens = 1_000_000,
    texts_only: TextsOnly = False,
    rows: Rows = 96,
    max_new_tokens: MaxNewTokens = 384,
    temperature: Temperature = 0.9,
    greedy_share: GreedyShare = 0.5,
    state_gib: StateGib = 10.0,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the assistant.")] = 192,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the assistant.")] = 5,
    steps: Steps = 2000,
    batch_tokens: BatchTokens = 8192,
    learning_rate: LearningRate = 2e-3,
    warmup: Warmup = 50,
    cooldown: Cooldown = 1.0,
    float32: Float32 = False,
    checkpoint_seconds: CheckpointSeconds = 180.0,
    measure_every: MeasureEvery = 100,
    name: Name = None,
    license: License = None,
    device: Device = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a small assistant for a target: a Llama with its tokenizer, distilled from it.

    The texts are as for `lossy-assist train eagle3`, and can be shared with it by --texts. Its embeddings begin as the
    target's along their principal directions; it learns the target's law over the whole vocabulary. After SIGTERM,
    SIGINT or any kill the same command goes on, and `accelerate launch` runs it on many processes.
    """
    from ..training.drafts.assistant_training import AssistantObjective, new_assistant
    from ..training.drafts.draft_saving import save_assistant
    from ..training.drafts.draft_training import DraftTrainingSettings
    from ..training.drafts.text_writing import TextSettings

    limit_threads(threads)
    kind = DraftKind(
        "assistant",
        {"hidden": hidden, "layers": layers},
        lambda target: (),
        lambda target, data: AssistantObjective(new_assistant(target.model, hidden, layers), target.model),
        lambda objective, target, folder, record: save_assistant(
            objective.model, target.tokenizer, folder, record, target.name, license
        ),
    )
    DraftRun(
        DraftSources(out, model, pair, prompts, task, texts, tokens, device, name),
        TextSettings(rows, max_new_tokens, temperature=temperature, greedy_share=greedy_share, seed=seed),
        DraftTrainingSettings(steps, learning_rate, warmup, cooldown, bfloat16=not float32),
        texts_only, state_gib, batch_tokens, checkpoint_seconds, measure_every,
    ).go(kind, Console(soft_wrap=True))  # fmt: skip
