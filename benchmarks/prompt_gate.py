"""``python -m benchmarks.prompt_gate``: does a prompt tell whether mismatches of its answer matter? Out of fold.

The target reads each labelled prompt and its own first 16 tokens. Its states and how sure it is go to a folder, from
which an interrupted run goes on. The orders go to the data set's ``gate``, beside those of the beginning of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hf_lossy_assist
from hf_lossy_assist import pairs, tasks

from . import application
from .kept_answers import write
from .tables import rows

FIRST = 16
"""The target's own tokens that are read after a prompt."""
TEXTS = {"no-shots": (("gsm8k", "gsm8k, an int8 writer"), 0, 0), "two-shots": (("gsm8k, two examples",), 2, 200)}
"""By name: what the labels call the texts, the worked examples, after which problem they begin."""
COMPONENTS = 20


def prompts(data: Path, folder: Path, texts: str, limit: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield each labelled problem's number, the tokens of its prompt, and the target's first ones."""
    names, shots, start = TEXTS[texts]
    part = folder / f"{texts}-train.jsonl"
    part.write_text("\n".join(data.read_text(encoding="utf-8").splitlines()[start:]), encoding="utf-8")
    task = tasks.load("gsm8k", str(part), split="train", shots=shots)
    examples, tokenizer = task.examples("train", 10_000), pairs.load("qwen-coder").tokenizer
    labelled = [x for x in rows("labels") if x["texts"] in names and all(m["weight"] for m in x["mismatches"])]
    for x in labelled[:limit]:
        i = int(x["prompt_id"])
        yield i, task.encode(examples[i], tokenizer), x["first_response"][:FIRST]


@torch.inference_mode()
def read(target: torch.nn.Module, prompt: Sequence[int], first: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the states of the prompt's last token and their mean over its end, and how sure the target then is."""
    states = target.model(torch.tensor([[*prompt, *first]]), use_cache=False).last_hidden_state[0]
    said = target.lm_head(states[len(prompt) - 1 : -1]).float().log_softmax(-1)
    surprise = -said[torch.arange(len(first)), torch.tensor(first)].numpy()
    entropy = -(said.exp() * said).sum(-1).numpy()
    end = states[: len(prompt)][-81:]
    return {"last": end[-1].numpy(), "mean": end.mean(0).numpy(), "nll": surprise, "entropy": entropy}


def order(given: np.ndarray, labels: np.ndarray, weights: np.ndarray, owner: np.ndarray, parts: int = 0) -> np.ndarray:
    """Return by how much a regression of the other folds finds each mismatch harmless."""
    found = np.zeros(len(given))
    for train, test in GroupKFold(10).split(given, labels, owner):
        few = [PCA(parts, random_state=0)] if parts else []
        model = make_pipeline(StandardScaler(), *few, LogisticRegression(C=0.01, max_iter=2000))
        model.fit(given[train], labels[train], logisticregression__sample_weight=weights[train])
        found[test] = -model.decision_function(given[test])
    return found


def orders(own: Sequence[Mapping], known: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return how early each gate keeps the mismatches ``own``, whose problems are all ``known``."""
    labels, weights, owner = (np.array([x[k] for x in own]) for k in ("important", "weight", "prompt"))
    judge = np.array([[x["order: judge"]] for x in own], dtype=float)
    last, mean = (np.stack([known[i][k] for i in owner]) for k in ("last", "mean"))
    sure = np.stack([
        (x["nll"].mean(), x["nll"][:4].mean(), x["nll"].max(), x["entropy"].mean(), x["entropy"][:4].mean())
        for x in (known[i] for i in owner)
    ])  # fmt: skip
    few = PCA(COMPONENTS, random_state=0).fit_transform(StandardScaler().fit_transform(last))
    given = {
        "gate: the prompt's last state": (last, COMPONENTS), "gate: the prompt's mean state": (mean, COMPONENTS),
        "gate: the target's first tokens": (sure, 0), "gate: prompt and first tokens": (np.c_[few, sure], 0),
        "gate: prompt, first tokens and judge": (np.c_[few, sure, judge], 0),
    }  # fmt: skip
    return {name: order(values, labels, weights, owner, parts) for name, (values, parts) in given.items()}


def main(*, data: Path, states: Path, limit: int = 200) -> None:
    """Read the prompts of at most ``limit`` problems with and without examples, and keep the gates' orders."""
    states.mkdir(exist_ok=True)
    target = None
    table = [dict(x) for x in rows("gate")]
    for texts in TEXTS:
        known = {}
        for i, prompt, first in prompts(data, states, texts, limit):
            file = states / f"{texts}-{i}.npz"
            if not file.exists():
                target = target or hf_lossy_assist.prepack(pairs.load("qwen-coder", dtype="float32").target)
                np.savez(file, **read(target, prompt, first))
            known[i] = dict(np.load(file))
        at = [j for j, x in enumerate(table) if x["texts"] == texts and x["prompt"] in known]
        for name, values in orders([table[j] for j in at], known).items():
            for j, value in zip(at, values, strict=True):
                table[j][f"order: {name}"] = round(float(value), 5)
    columns = dict.fromkeys(key for x in table for key in x)
    write("gate", [{key: x.get(key) for key in columns} for x in table])


app = application(main=main)

if __name__ == "__main__":
    app()
