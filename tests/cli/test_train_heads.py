"""``lossy-assist train judge`` and ``lossy-assist train verifier``."""

from __future__ import annotations

import re
from functools import partial

import pytest

from hf_lossy_assist import pairs
from hf_lossy_assist.heads import JudgeHead, VerifierHead
from tests.cli.running import said
from tests.training.synthetic import judged, ratios, write_judged, write_ratios

run = partial(said, "train")


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    return write_judged(tmp_path_factory.mktemp("mined"), judged())


@pytest.fixture(scope="module")
def ratio_data(tmp_path_factory):
    return write_ratios(tmp_path_factory.mktemp("ratios"), ratios(prompts=60))


def test_a_judge_is_trained_and_described(mined, tmp_path):
    printed = run("judge", "--data", mined, "--out", tmp_path, "--features", "both", "--recall", "0.95", "--seed", "3")
    head = JudgeHead.from_pretrained(tmp_path)
    config = head.config
    assert (config.models, config.positions, config.task) == ("target", "both", "arithmetic")
    assert config.provenance["training"]["seed"] == 3
    assert config.provenance["data"]["settings"] == {"split": "train"}
    assert head.threshold_for(0.95) == config.threshold
    card = (tmp_path / "README.md").read_text()
    for row in config.thresholds:
        assert f"{row.threshold:.6g}" in printed
        assert f"| {row.threshold:.6g} |" in card
    shown = {name.strip(): value for name, _, value in (x.rstrip().rpartition("  ") for x in printed.splitlines())}
    assert (shown["Prompts"], shown["Labelled tokens"]) == ("120", "600")
    metrics = {name: f"{value:.4f}" for name, value in config.metrics.items()}
    bounds = f"({metrics['auc_low']} … {metrics['auc_high']})"
    assert shown["ROC-AUC"] == f"{metrics['auc']} {bounds}"
    assert f"| ROC-AUC | {metrics['auc']} {bounds} |" in card
    assert "| out of fold | |" in card
    assert "![ROC curve](roc.png)" in card
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "config.json", "model.safetensors", "roc.png"}
    command = (
        f"lossy-assist train judge --data {mined.name} --out {tmp_path.name} --features both --recall 0.95 --seed 3"
    )
    assert f"```bash\n{command}\n```" in card, "not the arguments of whatever runs the command"
    models = f"--model {config.target.name} --assistant {config.draft.name} --task arithmetic"
    use = f"lossy-assist evaluate {models} --modes plain,lossless,judge --head {tmp_path}"
    assert printed.splitlines()[-1] == use


def test_the_command_that_measures_a_head_names_a_file_where_labels_came_from_one(tmp_path):
    mined = {"settings": {"split": "train", "data": "train.jsonl", "named": "own.module:Words:shots=8"}}
    data = write_judged(tmp_path / "mined", judged(), **mined)
    *_, said, command = run("judge", "--data", data, "--features", "draft", "--out", tmp_path / "head").splitlines()
    assert said.endswith("this measures it, on other prompts in a FILE:")
    assert " --task own.module:Words:shots=8 --data FILE --modes plain,lossless,judge --head " in command


def test_the_command_that_measures_a_head_names_the_pair_of_its_labels(tmp_path):
    data = write_judged(tmp_path / "mined", judged(), runs=[{"pair": "arithmetic"}])
    command = run("judge", "--data", data, "--features", "draft", "--out", tmp_path / "head").splitlines()[-1]
    assert command.startswith("lossy-assist evaluate --pair arithmetic --modes plain,lossless,judge --head ")


def test_a_target_that_was_behind_an_api_is_known_by_its_configuration(tiny_pair_folder, tmp_path):
    examples = judged().only(["draft_draft"])
    data, out = write_judged(tmp_path / "data", examples, target=None), tmp_path / "head"
    models = f"--features draft --model {tiny_pair_folder / 'target'}".split()
    run("judge", "--data", data, *models, "--out", out)
    identity = JudgeHead.from_pretrained(out).config.target
    assert (identity.name, identity.hidden_size, identity.fingerprint) == ("target", 16, ())
    assert identity.differences(pairs.load("arithmetic", folder=tiny_pair_folder).target) == []


def test_a_verifier_is_trained_and_described(ratio_data, tmp_path):
    printed = run("verifier", "--data", ratio_data, "--out", tmp_path, "--lambda", "1.2")
    config = VerifierHead.from_pretrained(tmp_path).config
    assert (config.ratio, config.position, config.threshold) == (1.2, "token", 0.5)
    assert re.search(rf"state that has read the token +{config.metrics['auc_token']:.4f}", printed)
    card = (tmp_path / "README.md").read_text()
    assert f"{config.metrics['auc_previous']:.4f}" in card
    assert f"{config.metrics['auc_token']:.4f}" in card
    assert "![ROC curve](roc.png)" in card
    assert len(config.thresholds) >= 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("judge", "--data", "MINED", "--model", "/nowhere/at/all"), "`--model`"),
        (("judge", "--data", "/nowhere/at/all"), "`--data` has to be a folder that `lossy-assist mine` wrote"),
        (("judge", "--data", "RATIOS"), "`lossy-assist train verifier`"),
        (("verifier", "--data", "MINED"), "`lossy-assist train judge`"),
        (("judge", "--data", "MINED", "--recall", "1.5"), "`--recall`"),
        (("verifier", "--data", "RATIOS", "--recall", "0"), "`--recall`"),
        (("judge", "--data", "MINED", "--pair", "arithmetic"), "but 'arithmetic' differs: of the target"),
        (("verifier", "--data", "RATIOS", "--lambda", "0"), "`--lambda`"),
        (("judge", "--data", "EMPTY"), "`--data` has to be a folder that `lossy-assist mine` wrote"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_errors_are_one_line(mined, ratio_data, tmp_path, arguments, message):
    places = {"MINED": mined, "RATIOS": ratio_data, "EMPTY": tmp_path / "EMPTY"}
    places["EMPTY"].mkdir()
    result = run(*(places.get(argument, argument) for argument in arguments), "--out", tmp_path / "head", status=2)
    (line,) = result.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "head").exists()


def test_a_head_does_not_go_into_a_folder_of_something_else(mined, tmp_path):
    (tmp_path / "summary.json").touch()
    refused = run("judge", "--data", mined, "--out", tmp_path, status=2)
    assert "`--out` has to be a new or an empty folder" in refused
    assert "has a summary.json" in refused
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
