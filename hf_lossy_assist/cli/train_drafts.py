"""``lossy-assist train eagle3`` and ``train assistant``: drafts for your target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ..compat import ending_tokens
from ..errors import LossyValueError
from ..heads import ModelIdentity
from ..store.folder import changes, refuse
from ..tasks import load as load_task
from ..training.drafts.assistant_training import AssistantObjective, new_assistant
from ..training.drafts.draft_data import DraftData, items, split
from ..training.drafts.draft_objective import DraftObjective
from ..training.drafts.draft_saving import save_assistant, save_eagle3, training_section
from ..training.drafts.draft_trainer import DraftArguments, DraftTrainer, draft_arguments
from ..training.drafts.eagle3_training import Eagle3Objective, new_eagle3, usual_layers
from ..training.drafts.target_states import TargetStates
from ..training.drafts.text_writing import TextSettings, of_task, self_asked, write_until
from ..training.drafts.texts import TextStore, recorded
from .console import flattened, limit_threads
from .models import LoadedModels, ModelOptions
from .options import TrainOptions

# Together with those of its own kind, the settings that a continued run has to keep.
_FIXED = ("batch_tokens", "gradient_accumulation_steps", "learning_rate", "warmup", "cooldown", "float32", "seed")
_HELD_OUT = 48


@dataclass(frozen=True, kw_only=True)
class DraftOptions(TrainOptions, ABC):
    """The options of both commands, and the run that they describe."""

    model: Annotated[str | None, typer.Option(help="The target: a folder or a Hub id.")] = None
    prompts: Annotated[
        Path | None, typer.Option(help="File of prompts, one a line, or .json or .jsonl; the target's own by default.")
    ] = None
    task: Annotated[str | None, typer.Option(help="Task whose training prompts to use instead.")] = None
    texts: Annotated[
        Path | None,
        typer.Option(help="Folder of the target's texts, OUT/texts by default; several drafts can share it."),
    ] = None
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of answers that the target writes first.")] = 1_000_000
    texts_only: Annotated[bool, typer.Option("--texts-only", help="Write the texts without training.")] = False
    rows: Annotated[int, typer.Option(min=1, help="Texts that the target writes at a time.")] = 96
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 384
    temperature: Annotated[float, typer.Option(min=0.01, help="Temperature of drawn prompts and answers.")] = 0.9
    greedy_share: Annotated[float, typer.Option(min=0, max=1, help="Share of the answers that are greedy.")] = 0.5
    state_gib: Annotated[float, typer.Option(min=0, help="Disk for the target's states; 0 keeps none.")] = 10.0
    steps: Annotated[int, typer.Option(min=1, help="Steps of the optimiser.")] = 2000
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens in a forward, of each process.")] = 8192
    gradient_accumulation_steps: Annotated[int, typer.Option(min=1, help="Forwards in a step, of each process.")] = 1
    learning_rate: Annotated[float, typer.Option(min=0, help="The highest learning rate.")] = 1e-3
    warmup: Annotated[int, typer.Option(min=1, help="Steps in which the learning rate rises.")] = 50
    cooldown: Annotated[float, typer.Option(min=0, max=1, help="Share of the other steps in which it falls.")] = 1.0
    float32: Annotated[bool, typer.Option("--float32", help="Compute in float32 instead of bfloat16.")] = False
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 100
    measure_every: Annotated[int, typer.Option(min=1, help="Steps between held-out measurements.")] = 100
    name: Annotated[str | None, typer.Option(help="The target's name on the Hub, for the card.")] = None
    device: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="Where it runs; a GPU if there is one.")] = None

    @abstractmethod
    def layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Return the target's layers whose states the draft reads."""

    @abstractmethod
    def objective(self, target: PreTrainedModel, data: DraftData, name: str) -> DraftObjective:
        """Return an untrained draft with its objective."""

    @abstractmethod
    def save(self, objective: Any, loaded: LoadedModels, name: str, training: str) -> None: ...

    def run(self) -> None:
        limit_threads(self.threads)
        disable_progress_bar()
        models = ModelOptions(self.pair, self.model)
        models.check(optional=("--assistant",))
        if self.prompts is not None and self.task is not None:
            raise LossyValueError("`--prompts` and `--task` can't both be given")
        args = self._arguments()
        if not self.texts_only:
            self._same_run(args)
        screen = Console(soft_wrap=True, quiet=args.process_index > 0)
        loaded = replace(models, device=str(args.device)).load()
        target, name = loaded.target, self.name or ModelIdentity.of(loaded.target).name
        store = TextStore(self.texts or self.out / "texts")
        written = self._write(store, loaded, args, screen)
        if self.texts_only:
            return
        states = TargetStates(store, target, self.layers(target), self.batch_tokens)
        states.keep(int(self.state_gib * 2**30), args.process_index, args.world_size)
        args.distributed_state.wait_for_everyone()
        texts, held_out = split(store.texts())
        data = DraftData(texts, states, self.batch_tokens)
        torch.manual_seed(self.seed)
        objective = self.objective(target, data, name)
        measured_on = [text for text in held_out if text.greedy] or held_out
        trainer = DraftTrainer(objective, args, data, items(measured_on[:_HELD_OUT], states))
        if (checkpoint := trainer.checkpoint()) is not None:
            screen.print(f"continuing from {checkpoint.name}")
        if (measured := trainer.fit()) is None:
            screen.print(f"stopped after step {trainer.state.global_step}; the same command goes on")
        elif args.process_index == 0:
            self.save(objective, loaded, name, training_section(written, trainer.state, measured))
            screen.print(f"saved in {self.out}")
        trainer.accelerator.end_training()

    def _arguments(self) -> DraftArguments:
        cpu = self.device == "cpu" or not torch.cuda.is_available()
        return draft_arguments(
            self.out / "training", steps=self.steps, warmup=self.warmup, cooldown=self.cooldown,
            learning_rate=self.learning_rate, gradient_accumulation_steps=self.gradient_accumulation_steps,
            save_steps=self.checkpoint_every, eval_steps=self.measure_every, logging_steps=10, seed=self.seed,
            bf16=not self.float32, use_cpu=cpu, dataloader_pin_memory=not cpu,
        )  # fmt: skip

    def _same_run(self, args: DraftArguments) -> None:
        settings = {name: getattr(self, name) for name in (*_FIXED, *type(self).__annotations__)}
        settings |= {"draft": type(self).__name__, "processes": args.world_size}
        with args.main_process_first(local=False):
            refuse(self.out, changes(recorded(Path(args.output_dir) / "settings.json", settings), settings))

    def _write(self, store: TextStore, loaded: LoadedModels, args: DraftArguments, screen: Console) -> dict[str, Any]:
        """Let the target write until there are enough texts; return a description for the card."""
        tokenizer, target = loaded.tokenizer, loaded.target
        if self.prompts is not None:
            source, task = self.prompts.name, load_task("prompts", str(self.prompts), split="train")
        else:
            source, task = self.task, self.task and load_task(self.task)
        openings = [self_asked(tokenizer)] if task is None else of_task(task, tokenizer)
        settings = TextSettings(
            self.rows, self.max_new_tokens, temperature=self.temperature, greedy_share=self.greedy_share, seed=self.seed
        )
        written = {"prompts": source, **asdict(settings)}
        with args.main_process_first(local=False):
            store.open(target, written)

        def show(answer_tokens: int, speed: float) -> None:
            screen.print(f"texts: {answer_tokens:,} of {self.tokens:,} tokens of answers, {speed:.0f} tokens/s")

        ends = (ending_tokens(target.generation_config) | {tokenizer.eos_token_id}) - {None}
        work = {"process": args.process_index, "processes": args.world_size, "on_batch": show}
        write_until(self.tokens, store, target, openings, settings, ends, **work)
        args.distributed_state.wait_for_everyone()
        return {**written, "answer_tokens": store.answer_tokens()}


@dataclass(frozen=True, kw_only=True)
class Eagle3Options(DraftOptions):
    vocabulary: Annotated[int, typer.Option(min=1, help="Tokens that the head can draft, the most frequent.")] = 6144
    unrolled: Annotated[int, typer.Option(min=1, help="Drafted tokens in a row that it is trained on.")] = 3
    single: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the steps, at the start, that train on one of them only.")
    ] = 0.5
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Dropout of its inputs, against overfitting.")] = 0.1

    def layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        return usual_layers(target)

    def objective(self, target: PreTrainedModel, data: DraftData, name: str) -> DraftObjective:
        ids = data.frequent(self.vocabulary, target.config.get_text_config(decoder=True).vocab_size)
        head = new_eagle3(target, ids, data.some_states(), name)
        return Eagle3Objective(head, target, self.unrolled, single=self.single, dropout=self.dropout)

    def save(self, objective: Any, loaded: LoadedModels, name: str, training: str) -> None:
        save_eagle3(objective.head, self.out, training, self.license)


@dataclass(frozen=True, kw_only=True)
class AssistantOptions(DraftOptions):
    hidden: Annotated[int, typer.Option(min=1, help="Width of the assistant.")] = 192
    depth: Annotated[int, typer.Option("--layers", min=1, help="Layers of the assistant.")] = 5
    learning_rate: Annotated[float, typer.Option(min=0, help="The highest learning rate.")] = 2e-3

    def layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        return ()

    def objective(self, target: PreTrainedModel, data: DraftData, name: str) -> DraftObjective:
        return AssistantObjective(new_assistant(target, self.hidden, self.depth), target)

    def save(self, objective: Any, loaded: LoadedModels, name: str, training: str) -> None:
        save_assistant(objective.model, loaded.tokenizer, self.out, training, name, self.license)


@flattened
def eagle3(options: Eagle3Options) -> None:
    """Train an EAGLE-3 head for a target, and write it to OUT in the format of speculators and vLLM.

    First the target writes texts: answers to your prompts, or to prompts that it makes up by playing the user of its
    chat template. Then the head learns the target's distribution from its states, by the training-time test. Texts,
    states and checkpoints are in OUT; after SIGTERM, SIGINT or any kill the same command goes on. With `accelerate
    launch -m hf_lossy_assist train eagle3 …` processes share the work.
    """
    options.run()


@flattened
def assistant(options: AssistantOptions) -> None:
    """Train a small assistant for a target: a Llama with its tokenizer, distilled from it.

    The texts are those of `lossy-assist train eagle3`, which can share them by --texts. The assistant learns the
    target's distribution over the whole vocabulary; its embeddings start as the principal components of the target's.
    After SIGTERM, SIGINT or any kill the same command goes on, and `accelerate launch` shares it among processes.
    """
    options.run()
