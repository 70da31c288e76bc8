"""Which drafters that models bring decode losslessly, and how: ``python -m benchmarks.model_drafts``."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from benchmarks import command
from hf_lossy_assist import LossyError, enabled, pairs
from hf_lossy_assist.acceptors.registry import REGISTRY, head_type
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.drafting import mtp
from tests.dflash_heads import trained_dflash
from tests.mtp_checkpoints import FAMILIES, loaded, prompts, taught, write
from tests.tiny_models import tiny

COLUMNS = ("drafter", "family", "one text: kept", "equal", "batch: kept", "equal", "drawn: kept", "rules", "loads")
LOOK_UP = {"prompt_lookup_num_tokens": 5}
RULES = [name for name, rule in REGISTRY.items() if head_type(rule) is None]
"""The rules that need no head."""


@dataclass(frozen=True)
class Case:
    """A target, the keywords by which its drafter drafts, and four prompts with their mask."""

    target: PreTrainedModel
    drafting: dict[str, Any]
    ids: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class DrafterRow:
    """What one drafter does for one family; ``kept`` are drafted tokens a round, ``loads`` reads of a checkpoint."""

    drafter: str
    family: str
    kept: str
    equal: str
    kept_in_batch: str
    equal_in_batch: str
    kept_drawn: str
    rules: str
    loads: str


def cases(folder: Path) -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Yield drafters, families and what makes them: the bundled pair, and tiny random models that have learnt texts."""
    pair = pairs.load("arithmetic")
    texts = [example.prompt for example in pair.task.examples("validation", 4)]
    asked = pair.tokenizer(texts, return_tensors="pt", padding=True)
    for drafter, drafting in {
        "EAGLE-3": {"assistant_model": pair.eagle3},
        "DFlash": {"assistant_model": pair.dflash},
        "look-up": LOOK_UP,
        "look-up, then a draft model": {"assistant_model": pair.draft, **LOOK_UP},
    }.items():
        yield drafter, "the bundled pair", partial(Case, pair.target, drafting, asked.input_ids, asked.attention_mask)
    ids = prompts()
    given = ids, torch.ones_like(ids)

    def dflash(name: str) -> Case:
        target = tiny(name)
        return Case(target, {"assistant_model": trained_dflash(target, ids)}, *given)

    def with_mtp(name: str) -> Case:
        target = loaded(write(name, folder / name))
        taught(target)
        return Case(target, {"use_mtp": True}, *given)

    for name in ("llama", "mistral", "gemma3"):
        yield "DFlash", name, partial(dflash, name)
    for name in FAMILIES:
        yield "MTP", name, partial(with_mtp, name)
    if is_known("gemma4_assistant"):
        models = importlib.import_module("tests.gemma4_models")
        yield (
            "Gemma 4's assistant",
            "gemma4",
            lambda: Case(models.tiny_gemma4(), {"assistant_model": models.tiny_assistant()}, *given),
        )


def is_known(architecture: str) -> bool:
    """Tell whether this version of transformers has an architecture."""
    return importlib.util.find_spec(f"transformers.models.{architecture}") is not None


def row_of(drafter: str, family: str, make: Callable[[], Case], gamma: int, length: int) -> DrafterRow:
    """Decode one text and a batch, greedily, drawn and by every rule; count how often a checkpoint is read."""
    shared = {"max_new_tokens": length, "eos_token_id": None}

    def decoded(case: Case, alone: bool, rule: str = "lossless", do_sample: bool = False) -> Any:
        return case.target.generate(
            **_inputs(case, alone), **case.drafting, **shared, num_assistant_tokens=gamma, lossy_mode=rule,
            do_sample=do_sample, return_dict_in_generate=True,
        )  # fmt: skip

    def greedy(case: Case, alone: bool) -> tuple[str, str]:
        plain, ours = case.target.generate(**_inputs(case, alone), **shared, do_sample=False), decoded(case, alone)
        return f"{ours.lossy_stats.mean_accepted:.2f}", "yes" if ours.sequences.equal(plain) else "no"

    refused = []
    with patch.object(mtp, "_files", wraps=mtp._files) as read:
        case = make()
        with enabled(case.target):
            alone, together = greedy(case, True), greedy(case, False)
            torch.manual_seed(0)
            drawn = f"{decoded(case, False, do_sample=True).lossy_stats.mean_accepted:.2f}"
            for rule in RULES:
                try:
                    decoded(case, True, rule)
                except LossyError:
                    refused.append(rule)
        loads = str(read.call_count) if drafter == "MTP" else ""
    rules = f"{len(RULES) - len(refused)} of {len(RULES)}" + (f"; not {', '.join(refused)}" if refused else "")
    return DrafterRow(drafter, family, *alone, *together, drawn, rules, loads)


def _inputs(case: Case, alone: bool) -> dict[str, torch.Tensor]:
    """Return the whole batch, or its first text without padding."""
    if alone:
        return {"input_ids": case.ids[:1, case.mask[0].bool()], "attention_mask": case.mask[:1, case.mask[0].bool()]}
    return {"input_ids": case.ids, "attention_mask": case.mask}


def main(
    gamma: Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of each text.")] = 24,
    only: Annotated[str | None, typer.Option(help="Drafters or families, separated by commas; all by default.")] = None,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table to this file, as Markdown.")] = None,
) -> None:
    """Tabulate what drafts with a target's own layer, head or assistant, or from its text, in float32."""
    limit_threads(threads)
    transformers.logging.set_verbosity_error()
    wanted = set(only.split(",")) if only else None
    with tempfile.TemporaryDirectory() as folder, progress(screen := Console()) as bar:
        asked = [case for case in cases(Path(folder)) if wanted is None or wanted & {*case[:2]}]
        rows = [row_of(*case, gamma, max_new_tokens) for case in bar.track(asked, description="drafters")]
    title = (
        f"transformers {transformers.__version__}, γ = {gamma}, a text of {max_new_tokens} tokens and a batch of four"
    )
    table = Table(*COLUMNS, title=title)
    for row in rows:
        table.add_row(*asdict(row).values())
    screen.print(table)
    if out is not None:
        lines = [COLUMNS, ("---",) * len(COLUMNS), *(tuple(asdict(row).values()) for row in rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        written = "Written by `python -m benchmarks.model_drafts --out FILE`."
        out.write_text(f"{title}; models in float32. {written}\n\n{table}\n", encoding="utf-8")


app = command(main)

if __name__ == "__main__":
    app()
