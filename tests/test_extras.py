"""What needs an extra says so, and the base install does without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hf_lossy_assist.errors import EXTRAS

WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None  # as if it were not installed
from hf_lossy_assist.cli import app
"""
MISSING = [name for names in EXTRAS.values() for name in names] + ["pyarrow", "scipy", "pandas"]


def run(code: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(missing=MISSING) + code
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)


def test_the_base_install_decodes_saves_and_shows(tmp_path):
    done = run(f"""
import hf_lossy_assist
from hf_lossy_assist import LossyUnsupportedError, pairs
pair = pairs.load("arithmetic")
inputs = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt")
with hf_lossy_assist.enabled(pair.target):
    pair.target.generate(**inputs, assistant_model=pair.draft, lossy_mode="dropmatch", max_new_tokens=8)
print("lossless" if hf_lossy_assist.last_stats(pair.target).lossless else "lossy")
pair.heads["judge"].save_pretrained({str(tmp_path / "head")!r})
try:
    hf_lossy_assist.evaluate(pair.target, pair.draft, tokenizer=pair.tokenizer, task=pair.task)
except LossyUnsupportedError as error:
    print(error)
app(["generate", "--pair", "arithmetic", "--mode", "topk:k=3", "--max-new-tokens", "3"], standalone_mode=False)
app(["inspect", "--pair", "arithmetic", "--max-new-tokens", "3", "--out", {str(tmp_path / "x.html")!r}],
    standalone_mode=False)
import hf_lossy_assist.cli.demo, hf_lossy_assist.cli.chat, hf_lossy_assist.cli.publish, hf_lossy_assist.calibration
""")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first == "lossy"
    assert "`evaluate` needs packages that are not installed" in second
    assert "pip install 'hf-lossy-assist[lab]'" in second
    assert (tmp_path / "head" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        *((f"{name} --help", "lab") for name in ("calibrate", "bench", "dropout", "mine", "train judge")),
        ("evaluate --pair arithmetic", "lab"),
        ("lm-eval --help", "lm-eval"),
    ],
)
def test_commands_name_their_extra(command: str, extra: str):
    done = run(f"app({command.split()!r})")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert f"{command.split()[0]}` needs packages" in done.stderr
    assert f"pip install 'hf-lossy-assist[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1
