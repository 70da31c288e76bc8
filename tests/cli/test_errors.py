"""Errors of every command are one line that speaks of the options there, and come before anything is written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hf_lossy_assist import LossyError, pairs
from hf_lossy_assist.tasks import Arithmetic
from hf_lossy_assist.tasks.gsm8k import GSM8K
from tests.cli.running import invoke

PAIR = "--pair arithmetic"
LETTERS = "--task tests.training.parts:Letters"
NOWHERE = f"{LETTERS} --model /no --assistant /none --out OUT"
API = "--target-api http://x/v1#m"
DRAFT_ONLY = f"{LETTERS} --assistant TINY/draft --out OUT"

# For each command, options and a pattern of the message. M stands for options that name tiny models.
ERRORS = {
    "generate": [
        (f"{PAIR} --mode topkk", r"`--mode` has to be one of \['everything', 'lossless', .* did you mean 'topk'"),
        (f"{PAIR} --mode all", r"`--mode` has to be one of \['everything', 'lossless', .* but is 'all'"),
        (f"{PAIR} --mode ears:beta=2", "`beta` of the rule 'ears'"),
        (f"{PAIR} --mode ears:bta=0.1", "`--mode` key 'bta' is unknown .* did you mean 'beta'"),
        (f"{PAIR} --mode ears:beta", "`--mode` has to have settings KEY=VALUE"),
        (f"{PAIR} --mode topk:k=2:k=3", "KEY=VALUE or RULE.KEY=VALUE, each once, but has 'k=3'"),
        (f"{PAIR} --mode topk,ears", r"`--mode` has to be one mode.* write `topk\+ears`"),
        (f"{PAIR} --mode plain", "`--mode` has to name rules.*; `lossless@0` is the target alone"),
        (f"{PAIR} --mode topk --head JUDGE", "`--head` is for the rule 'judge', of which `--mode` needs none"),
        (f"{PAIR} --gamma many", "Invalid value for --gamma"),
        (f"{PAIR} --model x", "`--pair` 'arithmetic' brings its own models"),
        (f"{PAIR} --temperature 0.7", "`--temperature` 0.7 needs `--sample`"),
        (f"{PAIR} --threads many", "Invalid value for --threads"),
        (f"{PAIR} --seed -1", "--seed. Must be >= 0"),
        (f"{PAIR} --mode judge:head=x", "'judge', which has .*; give its head by `--head`$"),
        (f"{PAIR} --prompt-lookup 3 --draft-dtype int8 P", "`--draft-dtype` int8 needs a draft model"),
        (f"{PAIR} --prepack --dtype float16 P", "in bfloat16 or float32"),
        ("--pair aritmetic", 'Did you mean "arithmetic"?'),
        ("--model x", "`--assistant` and `PROMPT` have to be given"),
        ("--model x --gamma 0 --mode min_p P", "`--mode` has 'min_p', but only 'lossless@0' runs without drafts"),
        ("--model /no/such --assistant /no/other p", "`--model` has to be .*'/no/such': there is no such folder"),
        ("--model a/b --assistant a/b p", "`--assistant` has to be another model than `--model`, but both are 'a/b'"),
        (f"{PAIR} --device gpu P", "`--device` has to be auto or one that is here, .*'cpu'.*, but is 'gpu'"),
        ("--model x --assistant y --mode judge P", "`--head` has to be given for the rule 'judge'"),
    ],
    "inspect": [
        (f"{PAIR} --gamma -1 --out OUT", "--gamma. Must be >= 0"),
        ("M --head JUDGE --modes judge --out OUT P", "`--head` is a judge head that was trained for"),
    ],
    "evaluate": [
        (f"{PAIR} --modes plain,{300 * 'x'}", "`--modes` has to be one of"),
        (f"{PAIR} --modes plain,topl", "`--modes` has to be one of .* did you mean 'topk'"),
        (f"{PAIR} --modes plain,topk@0", "`--modes` has 'topk@0', but only 'lossless@0'"),
        (f"{PAIR} --modes plain,topk:k=-1", "topk:k=-1: `k` of the rule 'topk'"),
        (f"{PAIR} --modes plain,plain", "every mode once"),
        (f"{PAIR} --modes plain --reference lossless", r"`--reference` has to be one of the modes \['plain'\]"),
        (f"{PAIR} --dtype int4", '"int4" for --dtype. Choose from'),
        (f"{PAIR} --engine gpu", '"gpu" for --engine. Choose from'),
        (f"{PAIR} --references 2", "Unknown option: --references. Did you mean --reference?"),
        (f"{PAIR} --reference", "--reference requires an argument"),
        (f"{PAIR} --temperature 1", "`--temperature` 1.0 needs `--sample`"),
        (f"{PAIR} --top-p nan --sample", "--top-p. Must be <= 1"),
        (f"{PAIR} --task prompts:shots=8 --data EMPTY", "argument 'shots'"),
        (f"{PAIR} --task prompts:data=x --data EMPTY", "`--task` has to set each key once, .* data=x, data="),
        (f"{PAIR} --task prompts:task=gsm8k --data EMPTY", "`--task` has to set each key once"),
        (f"{PAIR} --task gsm8k:shots=1:shots=2", "`--task` has to set each key once"),
        (f"{PAIR} --data EMPTY", "`--data` has to hold one prompt per line"),
        (f"{PAIR} --modes plain,judge --head JUDGE --head JUDGE", "`--head` has to name one head for the rule 'judge'"),
        (f"{PAIR} --modes plain,lossless --head JUDGE", "the rule 'judge', of which `--modes` needs none"),
        ("--model TINY/target --assistant TINY/draft/../target", "`--assistant` has to be another model"),
        (f"{PAIR} --head topk=folder", r"`RULE` of `--head` has to be one of \['judge', 'sprinter'\]"),
        (f"{PAIR} --task gsm", "`--task` has to be one of"),
        (f"{PAIR} --limit 0", "--limit. Must be >= 1"),
        (f"{PAIR} --prompt-lookup 3 --gamma 5", "`--gamma` 5 is for a draft model, but only `--prompt-lookup` drafts"),
        (f"{PAIR} --prompt-lookup 0", "--prompt-lookup. Must be >= 1"),
        (f"{PAIR} --prompt-lookup 3 --modes plain,topk@auto", "`--modes` has 'topk@auto'"),
        ("--model no/such --task arithmetic --modes plain,draft", "`--assistant` has to be .* mode 'draft'"),
        ("--model no/such --task arithmetic --modes plain,lossless", "`--assistant` has to be .* mode 'lossless'"),
    ],
    "advise": [
        (
            f"{PAIR} --modes typical:tree.depth=3:tree.top_k=2:tree.nodes=4 --out OUT",
            "only rules that judge position by position",
        ),
        (f"{PAIR} --modes judge", "only rules that judge position by position"),
        (f"{PAIR} --modes plain", "`--modes` has to name rules"),
        (f"{PAIR} --modes topq --out OUT", r"one of \['everything', 'lossless', .* did you mean 'topk'"),
        ("--pair nope --out OUT", "--pair"),
    ],
    "calibrate": [
        ("--out OUT", "`--from` has to be given"),
        ("--from TINY/no --out OUT", "`--from` has to be a folder that `lossy-assist evaluate` wrote"),
        *((f"--from x --max-loss {x} --out OUT", "`--max-loss` has to be a number > 0 and < 100") for x in (0, "nan")),
    ],
    "demo": [("--limit 0", "--limit. Must be >= 1")],
    "rules": [("tpok", "did you mean 'topk'")],
    "mine": [
        (PAIR, "`--out` has to be given"),
        ("--out OUT", "`--model`, `--assistant` and `--task` have to be given"),
        (f"{PAIR} --out OUT --temperature 0.5", "`--temperature` 0.5 needs `--sample`"),
        (f"{PAIR} --out OUT --sample --temperature 0", "--temperature. Must be > 0"),
        (f"{PAIR} --out OUT --sed 1", "Unknown option: --sed. Did you mean --seed?"),
        (f"{PAIR} --out OUT --target-api http://x/v1", "`--target-api` has to be a URL and a name"),
        (f"{PAIR} --out OUT --target-api x#m", "`--target-api` has to be a URL and a name .* is 'x#m'"),
        (f"{PAIR} --out OUT {API} --sample", "`--temperature` is 1.0, but a target behind an API writes .* greedily"),
        (f"{DRAFT_ONLY} {API} --labels ratio", "'ratio' need the target's probabilities"),
        (f"{PAIR} --out OUT --labels jugde", "`--labels` has to be one of .* did you mean 'judge'"),
        (f"{PAIR} --out OUT --labels ratio:writer_dtype=int8", "`--labels` ratio has .* but not 'writer_dtype'"),
        (f"{PAIR} --out OUT --labels judge:mismatch=8", "did you mean 'mismatches'"),
        (f"{PAIR} --out OUT --labels ratio:temperature=2", "`--labels` ratio has .* but not 'temperature'"),
        (f"{PAIR} --out OUT --labels judge:mismatches=0", "`mismatches` has to be an int >= 1.* or None for all"),
        (f"{PAIR} --out OUT --labels ratio:rows=many", "`rows` has to be an int >= 1"),
        (f"{PAIR} --out OUT --data x", "`--data` is for `--task`; name the task, `prompts` for"),
        (NOWHERE, "`--model` has to be .*'/no'"),
        (f"{NOWHERE.replace('Letters', 'Letters:unsafe_no_isolation=true')}", "argument '.*unsafe.no.isolation"),
    ],
}  # fmt: skip


def refusal(words: list[str]) -> str:
    """Return the line that a command ends with, all that it says."""
    result = invoke(words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert not result.stdout
    return result.stderr.strip()


@pytest.mark.parametrize(
    ("command", "pattern"),
    [(f"{name} {options}", pattern) for name, rows in ERRORS.items() for options, pattern in rows],
)
def test_an_error_is_one_line(command: str, pattern: str, bundled, tiny_pair_folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 4)
    out, empty = tmp_path / "out", tmp_path / "empty"
    empty.write_text("\n")
    judge = pairs.hub_cards() / "arithmetic-judge"
    models = f"--model {tiny_pair_folder / 'target'} --assistant {tiny_pair_folder / 'draft'}"
    places = {"M": models, "OUT": out, "EMPTY": empty, "TINY": tiny_pair_folder, "JUDGE": judge}
    command = command.replace("TINY", str(tiny_pair_folder))
    words = shlex.split(" ".join(str(places.get(word, word)) for word in command.split()))
    assert re.search(pattern, said := refusal(words)), said
    assert not out.exists()


FILES = {
    "evaluate --data NONE": "`--data` has to be a text file",
    "evaluate --task gsm8k --data NONE": "`--data` has to be an existing file",
    "evaluate --task gsm8k --data EMPTY": "`--split` has to be one of",
    "evaluate --head NONE": "neither a folder",
    "evaluate --head FOLDER": "`--head` can't be loaded: ",
    "evaluate --split none": "`--split` has to be one of",
    "advise --data NONE": "`--data` has to be a text file",
    "mine --out OUT --task gsm8k --data NONE": "`--data` has to be an existing file",
    "mine --out OUT --task gsm8k --data EMPTY": "holds no rows",
    "mine --out OUT --split none": "`--split` has to be one of",
    "generate --head NONE": "neither a folder",
    "inspect --out NONE/page.html": "in a folder that can be written to",
}


@pytest.mark.parametrize(("command", "message"), FILES.items())
def test_a_file_that_cannot_be_read_is_refused_before_models_are_loaded(
    command: str, message: str, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(pairs.Pair, "load", lambda *_, **__: pytest.fail("models were loaded"))
    (empty := tmp_path / "empty").write_text("\n")
    places = {"NONE": tmp_path / "nowhere" / "at" / "all" / "x", "EMPTY": empty, "OUT": tmp_path / "out"}
    places["FOLDER"] = tmp_path
    for name, path in places.items():
        command = command.replace(name, str(path))
    assert message in refusal([*command.split(), "--pair", "arithmetic"])
    assert not places["OUT"].exists()


OF_SPLITS = {"evaluate": "--modes plain", "advise": "", "mine": "--split test --out OUT"}


@pytest.mark.parametrize(("command", "others"), OF_SPLITS.items())
def test_the_remedy_for_a_split_that_a_file_lacks_is_one(command: str, others: str, tmp_path: Path, monkeypatch):
    """Models are loaded once the prompts are known."""
    read: list[str] = []
    (data := tmp_path / "train.jsonl").write_text('{"question": "How many?", "answer": "#### 24"}\n')
    monkeypatch.setattr(pairs.Pair, "load", lambda *_, **__: (_ for _ in ()).throw(LossyError("prompts are read")))
    monkeypatch.setattr(GSM8K, "examples", lambda self, split, n: (read.append(split), known(self, split, n))[1])

    def said(others: str) -> str:
        words = f"{command} {others} --pair arithmetic --task gsm8k --data {data}"
        return refusal(words.replace("OUT", str(tmp_path / "out")).split())

    (remedy,) = re.findall("or give `(--split train)`$", said(others))
    others = others.replace("--split test", "")
    assert "prompts are read" in said(f"{others} {remedy}")
    assert read[-1] == "train"


known = GSM8K.examples


def test_unknown_rules_are_refused_before_torch_is_imported():
    program = """
import sys
sys.modules["torch"] = None  # whoever imports it fails
from hf_lossy_assist.cli import main
main(sys.argv[1:])
"""
    for command in ("evaluate --pair arithmetic --modes plain,topkk", "generate --pair arithmetic --mode topkk@3:k=2"):
        run = subprocess.run(
            [sys.executable, "-c", program, *command.split()], capture_output=True, text=True, check=False
        )
        assert run.returncode == 2, run.stderr
        assert "did you mean 'topk'?" in run.stderr
