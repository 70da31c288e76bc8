"""``lossy-assist generate``."""

from __future__ import annotations

import io
import re
import shutil
from functools import partial

import pytest
import torch
from rich.console import Console
from transformers import GenerationConfig

from benchmarks.bundled_pair.recipe import build_tokenizer
from hf_lossy_assist import pairs
from hf_lossy_assist.cli.rendering import ConsoleStreamer
from tests.cli.running import said
from tests.mtp_checkpoints import write
from tests.tiny_pair import TEMPLATE

PLAIN = ["--prompt-lookup", "1"]
PROMPT = "Question: Ada has 5 apples.\nAnswer:"


@pytest.fixture
def models(tiny_pair_folder):
    return ["--model", str(tiny_pair_folder / "target"), "--assistant", str(tiny_pair_folder / "draft")]


run = partial(said, "generate")


def run_pair(*arguments: str) -> str:
    """Return what the command prints for twelve tokens of the pair."""
    return run("--pair", "arithmetic", "--max-new-tokens", "12", *arguments, PROMPT)


def continuation(folder, prompt: str = PROMPT, dtype: torch.dtype = torch.float32) -> str:
    """Return what the target alone says."""
    pair = pairs.load("arithmetic", folder=folder, dtype=dtype)
    inputs = pair.tokenizer(prompt, return_tensors="pt")
    ids = pair.target.generate(**inputs, do_sample=False, max_new_tokens=12)
    return pair.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_lossless_prints_what_the_target_alone_would_say(models, tiny_pair_folder):
    # The models in the folder are in bfloat16, and the command takes them as they are.
    alone = continuation(tiny_pair_folder, dtype=torch.bfloat16) + "\n"
    assert run(*models, "--max-new-tokens", "12", PROMPT) == alone
    assert run(*models[:2], "--mode", "lossless@0", "--max-new-tokens", "12", PROMPT) == alone


def test_the_pair_needs_no_models_and_no_prompt(bundled, tiny_pair_folder):
    example = pairs.load("arithmetic").task.examples("test", 19)[18]
    printed = run("--pair", "arithmetic", "--max-new-tokens", "12")
    assert example.prompt in printed
    assert continuation(tiny_pair_folder, example.prompt) in printed
    assert f"The answer is cut off: {example.answer} is right." in printed
    assert run_pair() == continuation(tiny_pair_folder) + "\n"


def test_the_default_problem_is_answered_right_and_a_lossy_rule_needs_fewer_rounds():
    rounds = {}
    for mode in ("lossless", "dropmatch"):
        printed = run("--pair", "arithmetic", "--mode", mode, "--seed", "0", "--stats")
        assert "\nThe answer is right.\n" in printed
        rounds[mode] = int(re.search(r"rounds\D+(\d+)", printed)[1])
    assert rounds["dropmatch"] < rounds["lossless"]


def test_text_arrives_in_pieces(tiny_pair_folder):
    pieces = []

    class File(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return super().write(text)

    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    streamer = ConsoleStreamer(pair.tokenizer, Console(file=File(), width=20))
    answer = " First, Ada has 5 apples [b]and[/b] more of them. The answer is 5."
    prompt, rest = (pair.tokenizer(text, return_tensors="pt")["input_ids"] for text in (PROMPT, answer))
    streamer.put(prompt)
    assert not pieces
    streamer.put(rest[0, 1:9])
    streamer.put_statuses(["accepted"] * 8)
    assert pieces
    streamer.put(rest[0, 9:])
    streamer.end()
    assert "".join(pieces) == answer + "\n"


def test_statistics_are_printed_on_request(bundled):
    printed = run_pair("--stats", "--mode", "topk:k=2")
    for name in ("tokens per round", "mean accepted", "accepted only by the lossy rule", "seconds, drafting"):
        assert name in printed
    assert "(lossy)" in printed
    assert "(lossless)" in run_pair("--stats")
    assert "Statistics" not in run_pair()


def test_trees_are_asked_for_like_any_setting(bundled):
    printed = run_pair("--stats", "--mode", "lossless:tree.depth=3:tree.top_k=2:tree.nodes=5")
    rounds, drafted = (int(re.search(rf"\b{name}[^\d\n]+(\d+)", printed)[1]) for name in ("rounds", "drafted"))
    assert rounds < drafted <= 5 * rounds


def test_settings_reach_the_rule(bundled):
    # An untrained draft is hardly ever the target's first choice, but always among all its choices.
    marks = {k: run_pair("--show-acceptance", "--mode", f"topk@8:k={k}").count("«") for k in (1, 9999)}
    assert run_pair("--show-acceptance", "--mode", "topk:k=9999", "--gamma", "8").count("«") == marks[9999]
    assert marks[1] == 0
    assert marks[9999] > 5


def test_rounded_drafts_and_prepacked_models_say_what_the_target_says(bundled, models, tiny_pair_folder):
    assert run_pair("--draft-dtype", "int8") == run_pair()
    rounded = run(*models, "--max-new-tokens", "12", "--draft-dtype", "int4", PROMPT)
    assert rounded == continuation(tiny_pair_folder, dtype=torch.bfloat16) + "\n"
    assert run_pair("--prepack") == run_pair()


def test_prompt_lookup_drafts_without_an_assistant(bundled, models):
    printed = run_pair("--stats", "--prompt-lookup", "3")
    assert printed.startswith(run_pair())
    assert int(re.search(r"\bdraft calls[^\d\n]+(\d+)", printed)[1]) == 0
    run(*models[:2], "--prompt-lookup", "3", "--max-new-tokens", "12", PROMPT)
    printed = run_pair("--stats", "--assistant", "draft", "--prompt-lookup", "3")
    assert printed.startswith(run_pair())
    assert int(re.search(r"\bdraft calls[^\d\n]+(\d+)", printed)[1]) > 0


def test_a_prompt_is_a_user_s_turn_where_there_is_a_chat_template(models, tiny_pair_folder, tmp_path):
    target = tmp_path / "target"
    shutil.copytree(tiny_pair_folder / "target", target)
    arguments = ("--model", str(target), *models[2:], "--max-new-tokens", "12", PROMPT)
    (target / "chat_template.jinja").write_text(TEMPLATE)
    prompt = f"user: {PROMPT}</s>assistant: "
    assert run(*arguments) == continuation(tiny_pair_folder, prompt, torch.bfloat16) + "\n"


def test_a_seed_makes_samples_repeat(bundled):
    def sampled(seed: str) -> str:
        return run_pair("--mode", "ears", "--sample", "--temperature", "0.9", "--seed", f"{seed}")

    assert sampled("1") == sampled("1") != sampled("2")


def test_a_folder_that_draws_draws(bundled, tmp_path):
    GenerationConfig(lossy_mode="typical", do_sample=True, temperature=3.0, top_k=0).save_pretrained(tmp_path)
    texts = [run_pair("--mode", str(tmp_path), "--seed", seed) for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("settings", [[], ["--prepack"]])
def test_a_model_s_own_mtp_layer_is_an_assistant(tmp_path, settings):
    tokenizer = build_tokenizer(60)
    tokenizer.save_pretrained(write("qwen3_5", tmp_path, vocab_size=len(tokenizer)))
    models = ["--model", str(tmp_path), "--dtype", "float32", "--max-new-tokens", "12", *settings]
    written, plain = (run(*models, *drafting, PROMPT) for drafting in (["--assistant", "mtp"], PLAIN))
    assert written == plain
    refused = run(*models, "--assistant", "mtp", "--draft-dtype", "int8", PROMPT, status=2)
    assert "`--draft-dtype` int8 needs a draft model" in refused


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_a_pair_s_head_is_an_assistant(name):
    assert run_pair("--assistant", name) == run_pair()
