"""From a model's generation configuration to its assistant, and what can go wrong on the way."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from typer.testing import CliRunner

from benchmarks.pair_recipe import build_model, build_tokenizer
from hf_lossy_assist import LossyValueError, last_stats, pairs
from hf_lossy_assist.call import certificate
from hf_lossy_assist.call.config import parse
from hf_lossy_assist.cli import app
from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.integrations.serving import RequestLimits, Settings, assist
from tests.hub.fixtures import loopback_hub  # noqa: F401
from tests.hub.store import Repository, StoredFile
from tests.integrations.serving.running import FIELDS
from tests.tiny_models import prompt, tiny
from tests.tiny_pair import TINY

PLAIN = {"max_new_tokens": 8, "do_sample": False}


TOKENIZER = build_tokenizer(100)


def load_tokenizer(name: str, revision: str):
    raise OSError("there is none")


def make_target() -> PreTrainedModel:
    model = tiny()
    model.generation_config.lossy_mode = "topk"
    model.generation_config.lossy_assistant = "org/draft"
    return model


@pytest.fixture
def target() -> PreTrainedModel:
    return make_target()


def load(name: str, revision: str) -> PreTrainedModel:
    assert (name, revision) == ("org/draft", "main")
    return tiny(seed=1)


def test_assisted_wherever_a_rule_is_named(target):
    draft = assist(target, TOKENIZER, load, load_tokenizer)
    target.generate(prompt(), **PLAIN)
    first = last_stats(target)
    assert first.drafted > 0
    assert first.accepted_by.keys() == {"topk"}
    target.generate(inputs=prompt(), **PLAIN, lossy_mode=None)
    assert last_stats(target) is None
    # Its own assistant comes first.
    other = tiny(seed=2)
    calls = []
    hook = other.register_forward_hook(lambda *_: calls.append(1))
    target.generate(prompt(), **PLAIN, assistant_model=other)
    hook.remove()
    assert calls
    assert draft is not other


def test_a_rule_of_the_call_on_a_model_without_one(target):
    target.generation_config.lossy_mode = None
    assist(target, TOKENIZER, load, load_tokenizer)
    target.generate(prompt(), **PLAIN)
    assert last_stats(target) is None
    target.generate(prompt(), generation_config=GenerationConfig(lossy_mode="typical", **PLAIN))
    assert last_stats(target).accepted_by.keys() == {"typical"}


def test_models_without_our_fields_decode_as_ever():
    model = tiny()
    expected = model.generate(prompt(), **PLAIN)
    assert assist(model, TOKENIZER, load, load_tokenizer) is None
    assert torch.equal(model.generate(prompt(), **PLAIN), expected)
    assert last_stats(model) is None


def test_each_assisted_call_is_recorded(target):
    recorded = []
    assist(target, TOKENIZER, load, load_tokenizer, lambda *call: recorded.append(call))
    config = GenerationConfig(lossy_mode="topk", **PLAIN)
    target.generate(prompt(), generation_config=config)
    last = last_stats(target)
    target.generate(prompt(), **PLAIN, lossy_mode=None)
    ((model, of_call, stats),) = recorded
    assert model is target
    assert of_call is config
    assert stats is last


def test_a_stream_ends_after_its_statistics_are_there(target):
    told = []

    class Streamer(BaseStreamer):
        def put(self, value):
            assert value.dim() == 1

        def end(self):
            told.append("end")

    assist(target, TOKENIZER, load, load_tokenizer, lambda *_: told.append("statistics"))
    target.generate(prompt(), **PLAIN, streamer=Streamer())
    assert told == ["statistics", "end"]


def test_prompt_lookup_needs_no_assistant(target):
    target.generation_config.lossy_assistant = None
    target.generation_config.prompt_lookup_num_tokens = 3
    assert assist(target, TOKENIZER, load, load_tokenizer) is None
    target.generate(prompt(), **PLAIN)
    assert last_stats(target).rounds > 0


def test_a_revision(target):
    target.generation_config.lossy_assistant = "org/draft@v2"
    asked = []

    def load_v2(name: str, revision: str) -> PreTrainedModel:
        asked.append((name, revision))
        return tiny(seed=1)

    assist(target, TOKENIZER, load_v2, lambda name, revision: asked.append((name, revision)) or TOKENIZER)
    assert asked == [("org/draft", "v2")] * 2


def test_a_model_can_be_unloaded():
    target = make_target()
    seen = weakref.ref(assist(target, TOKENIZER, load, load_tokenizer)), weakref.ref(target)
    target.generate(prompt(), **PLAIN)
    del target
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lossy_assistant": 3}, "`lossy_assistant` of '' has to be a str"),
        ({"lossy_assistant": "no such thing!"}, "neither a folder nor an id on the Hub"),
        ({"lossy_assistant": None}, "needs a drafter; set `lossy_assistant`"),
        ({"lossy_mode": "tpok"}, "did you mean 'topk'"),
        ({"lossy_config": {"q": 1}}, "`lossy_config` key 'q'"),
        ({"lossy_mode": "judge"}, "`lossy_head` has to be given"),
    ],
)
def test_errors_at_load(target, fields: dict, message: str):
    for name, value in fields.items():
        setattr(target.generation_config, name, value)
    with pytest.raises(LossyValueError) as error:
        assist(target, TOKENIZER, load, load_tokenizer)
    assert message in str(error.value)
    assert "generate" not in vars(target)


def test_a_draft_with_another_vocabulary_and_no_tokenizer(target):
    def other(name: str, revision: str) -> PreTrainedModel:
        model = tiny(seed=1)
        model.config.vocab_size += 10_000
        return model

    with pytest.raises(LossyValueError, match="vocabulary"):
        assist(target, TOKENIZER, other, load_tokenizer)


def test_a_draft_with_another_tokenizer():
    """As the server calls it: with the target's tokenizer."""
    pair = pairs.load("arithmetic")
    pair.target.generation_config.lossy_assistant = "org/draft"
    pair.target.generation_config.lossy_mode = "typical"
    other = build_tokenizer(100)
    draft = build_model(TINY, other).eval()
    assist(pair.target, pair.tokenizer, lambda *_, **__: draft, lambda *_, **__: other)
    inputs = pair.tokenizer("Tom has 3 apples.", return_tensors="pt")
    pair.target.generate(**inputs, **PLAIN, tokenizer=pair.tokenizer)
    assert last_stats(pair.target).drafted > 0


def test_a_draft_that_the_hub_does_not_have(target, loopback_hub):  # noqa: F811
    loopback_hub.repositories["org/broken"] = repository = Repository()
    repository.commit("main", {"config.json": StoredFile(b"{}", lfs=False)})
    for name in ("org/draft", "org/broken"):
        target.generation_config.lossy_assistant = name
        with pytest.raises(LossyValueError, match=f"`lossy_assistant` of '' has to be a causal .* but is '{name}'"):
            assist(target, TOKENIZER, AutoModelForCausalLM.from_pretrained, AutoTokenizer.from_pretrained)


def test_settings_stand_above_the_file(target):
    target.generation_config.lossy_config = {"k": 7}
    Settings("a/b", "typical").apply(target)
    config = target.generation_config
    assert (config.lossy_mode, config.lossy_config, config.lossy_assistant) == ("typical", None, "a/b")
    Settings().apply(target)
    assert (config.lossy_mode, config.lossy_assistant) == ("typical", "a/b")


def serve(*arguments: str):
    return CliRunner().invoke(app, ["serve", *arguments])


@pytest.mark.parametrize(
    ("fields", "arguments", "message"),
    [
        (FIELDS | {"lossy_assistant": "../nobody"}, (), "`lossy_assistant` of "),
        (FIELDS | {"_from_model_config": True}, (), "remove `_from_model_config`"),
        (FIELDS, ("--mode", "judge", "--head", "./nowhere"), "'./nowhere'"),
        ({}, ("--mode", "topk"), "needs a drafter"),
        (FIELDS, ("--continuous-batching",), "leave it out"),
        (None, (), "`model` has to be a causal language model in a folder or on the Hub, but is './nowhere'"),
    ],
    ids=["no such draft", "file not read", "no such head", "no draft", "continuous batching", "no such model"],
)
def test_the_command_does_not_start(
    make_folder: Callable[..., Path], fields: dict | None, arguments: tuple, message: str
):
    model = "./nowhere" if fields is None else str(make_folder(**fields))
    result = serve(model, *arguments, "--device", "cpu")
    assert result.exit_code == 2, result.output
    lines = [line for line in result.output.splitlines() if "error: " in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mode", "tpok"), "did you mean 'topk'"),
        (("--config", "k=2"), "needs a `--mode`"),
        (("--mode", "topk", "--config", "q=2"), "key 'q'"),
        (("--prot", "1"), "No such option"),
        (("--limit", "num_pats=3"), "did you mean 'num_paths'"),
        (("--limit", "num_paths=0"), "`num_paths` has to be a positive integer"),
    ],
)
def test_bad_options(arguments: tuple, message: str):
    result = serve("org/model", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_help_shows_both_kinds_of_options():
    result = serve("--help")
    assert result.exit_code == 0
    ours = ("--assistant", "--mode", "--config", "--head", "--allow-head", "--allow-compile", "--limit")
    for option in (*ours, "--port", "--model-timeout"):
        assert option in result.output


@pytest.mark.parametrize("rule", [(), ("--mode", "topk")])
def test_options_say_what_requests_may_ask_for(rule: tuple, monkeypatch: pytest.MonkeyPatch):
    given: list[Settings] = []
    monkeypatch.setattr(
        "hf_lossy_assist.integrations.serving.server.run", lambda server, settings: given.append(settings)
    )
    some = ("--allow-head", "org/a", "--allow-head", "org/b", "--allow-compile", "--limit", "num_paths=8")
    for arguments in ((), (*some, "--limit", "new_tokens=256")):
        result = serve("org/model", *rule, *arguments)
        assert result.exit_code == 0, result.output
    nothing, something = given
    assert (nothing.allowed_heads, nothing.allow_compile) == ((), False)
    assert (something.allowed_heads, something.allow_compile) == (("org/a", "org/b"), True)
    assert nothing.limits == RequestLimits()
    assert something.limits == RequestLimits(num_paths=8, new_tokens=256)
    assert nothing.mode == something.mode == (rule[1] if rule else None)


def test_a_certified_setting_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    """Calibrated on texts of which hardly a token was kept, whereas the target drafts for itself here."""
    target = tiny()
    identity = asdict(ModelIdentity.of(target))
    config = {"lossy_mode": "topk", "lossy_config": {"k": 2}, "num_assistant_tokens": 4}
    certificate.Certificate(
        task="none", split="test", problems=100, digest="", max_loss=1.0, confidence=95.0, reference="target alone",
        chosen="topk", tested=[certificate.TestedSetting("topk", "topk", config, "certified")],
        rule=certificate.rule_in_full(parse("topk", {"k": 2})), temperature=None,
        target=identity, draft=identity, heads={}, usual={"mean_accepted": [0.0, 0.1] * 50},
    ).save(tmp_path)  # fmt: skip
    given: list[Settings] = []
    monkeypatch.setattr(
        "hf_lossy_assist.integrations.serving.server.run", lambda server, settings: given.append(settings)
    )
    result = serve("org/model", "--assistant", "org/draft", "--config", str(tmp_path))
    assert result.exit_code == 0, result.output
    given[0].apply(target)
    assist(target, TOKENIZER, lambda *_, **__: target, load_tokenizer)
    for seed in range(40):
        target.generate(prompt(seed=seed), **PLAIN)
    (record,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert "differs from the calibration's" in record.getMessage()
