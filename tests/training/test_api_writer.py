"""A target behind an OpenAI-compatible API on loopback."""

from __future__ import annotations

import importlib.util

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.errors import LossyServiceError
from hf_lossy_assist.tasks import Example
from hf_lossy_assist.tasks.api_model import ApiModel
from hf_lossy_assist.training.choice import DraftArgmax
from hf_lossy_assist.training.judge_labels import Searches
from hf_lossy_assist.training.labelling import load_mined
from hf_lossy_assist.training.writing import ApiWriter, Prompt, PromptText
from tests.openai_server import completes, fails, openai_server, transformers_server
from tests.training.parts import Checksum, Parts, by_prompt, labelling, run, tiny_parts


def api_parts(**more) -> Parts:
    """Return parts whose target has one end only, since all that a server says is that a text has ended."""
    parts = tiny_parts(seed=3, **more)
    end = parts.tokenizer.eos_token_id
    with_end = parts.target.get_output_embeddings().weight
    with_end.data[end] = with_end.data[[11, 23, 37]].mean(0) * 1.5
    parts.target.generation_config.eos_token_id = end
    return parts


def client(server) -> ApiModel:
    return ApiModel(server.url, "tiny", attempts=3, timeout=20.0)


def searches(parts: Parts, model: ApiModel, slots: int = 3) -> Searches:
    writer = ApiWriter(model, parts.task, parts.tokenizer, parts.limits(), slots)
    return Searches(writer, DraftArgmax(parts.draft), parts.task, parts.decode, slots)


def test_labels_are_those_of_a_target_in_this_process():
    parts = api_parts()
    prompts = parts.prompts(4)
    with openai_server(completes(parts.target, parts.tokenizer)) as server:
        results = list(searches(parts, client(server)).run(prompts))
    assert {one.prompt.id: one.found for one in results} == by_prompt(parts, prompts)
    assert sum(len(one.found.mismatches) for one in results) > 3
    request = server.requests[0]
    assert request["path"] == "/v1/completions"
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("tiny", 0, parts.max_new_tokens)
    assert {one["prompt"] for one in server.requests} >= {prompt.example.prompt for prompt in prompts}


def test_a_server_that_dies_midway_costs_nothing_that_was_mined(tmp_path):
    parts = api_parts()

    def mined_by(server) -> list[int]:
        return run(tmp_path, labelling(parts, 6, target=None, api=client(server), batch_size=2))

    dying = openai_server(*[completes(parts.target, parts.tokenizer)] * 26, fails(500))
    with dying as server, pytest.raises(LossyServiceError, match="what was mined is kept"):
        mined_by(server)
    before = load_mined(tmp_path).prompts
    assert 0 < len(before) < 6
    with openai_server(completes(parts.target, parts.tokenizer)) as server:
        assert len(mined_by(server)) == 6 - len(before)
    mined = load_mined(tmp_path)
    assert sorted(row.id for row in mined.prompts) == list(range(6))
    assert mined.prompts[: len(before)] == before
    assert [name for name in mined.tokens if name.endswith("_draft")] == ["draft_draft"]
    assert mined.manifest["target"] is None


@pytest.fixture
def tokenizer(pair):
    return pair.tokenizer


def spelling(tokenizer, prompt: str) -> PromptText:
    example = Example(prompt, "")
    return PromptText.of(Prompt(0, example, tuple(tokenizer(prompt)["input_ids"])), Checksum(), tokenizer)


def test_text_and_tokens_correspond(tokenizer):
    spell = spelling(tokenizer, "Question: How many?\nAnswer:")
    assert spell.text == "Question: How many?\nAnswer:"
    response = tuple(tokenizer(" First, Ada has 5 apples.", add_special_tokens=False)["input_ids"])
    assert spell.write(()) == spell.text
    assert spell.write(response[:4]) + tokenizer.decode(response[4:]) == spell.text + " First, Ada has 5 apples."
    assert spell.read(response[:4], tokenizer.decode(response[4:])) == response
    assert spell.read(response, "") == response


def test_tokens_that_are_settled_stay(tokenizer):
    spell = spelling(tokenizer, "Answer:")
    whole = tokenizer(" apples", add_special_tokens=False)["input_ids"]
    pieces = tuple(tokenizer.convert_tokens_to_ids(["Ġ", "a", "p"]))
    assert len(whole) < len(pieces)
    response = spell.read(pieces, "ples.")
    assert response[:3] == pieces
    assert tokenizer.decode(response) == " apples."
    assert spell.read(pieces, "") == pieces


def test_half_a_character_can_not_be_sent(tokenizer):
    spell = spelling(tokenizer, "Answer:")
    euro = tuple(tokenizer("€", add_special_tokens=False)["input_ids"])
    assert len(euro) == 3
    assert spell.write(euro).endswith("€")
    with pytest.raises(LossyValueError, match="part of a character"):
        spell.write(euro[:2])


def test_half_a_character_costs_one_prompt(pair):
    class Halves(DraftArgmax):
        def guess(self, wanted):
            for one in wanted:
                yield one.slot, (half,) * (len(one.response) - one.start)

    half = pair.tokenizer("€", add_special_tokens=False)["input_ids"][0]
    bundled = Parts(pair.target, pair.draft, pair.tokenizer, pair.task, max_new_tokens=100)
    with openai_server(completes(pair.target, pair.tokenizer)) as server:
        writer = ApiWriter(client(server), bundled.task, bundled.tokenizer, bundled.limits(), 1)
        halves = Searches(writer, Halves(pair.draft), bundled.task, bundled.decode, 1)
        (result,) = halves.run(bundled.prompts(1))
    assert "part of a character" in str(result.error)


def test_a_begin_that_the_server_writes_itself_is_left_to_it(tokenizer):
    class Chatty(Checksum):
        def render(self, example, tokenizer):
            return tokenizer.bos_token + example.prompt

    example = Example("Answer:", "")
    prompt = Prompt(0, example, tuple(tokenizer("Answer:")["input_ids"]))
    assert PromptText.of(prompt, Chatty(), tokenizer).text == "Answer:"


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "openai")),
    reason="`transformers serve` needs fastapi, uvicorn and openai",
)
def test_transformers_serve_is_such_a_server(pair, tmp_path):
    pair.target.save_pretrained(tmp_path)
    pair.tokenizer.save_pretrained(tmp_path)
    parts = Parts(pair.target, pair.draft, pair.tokenizer, pair.task, max_new_tokens=100)
    prompts = parts.prompts(9)[8:]  # a few mismatches, important and not
    from transformers.cli.serve import Serve

    with transformers_server(Serve, force_model=str(tmp_path), dtype="float32") as address:
        found = {
            one.prompt.id: one.found for one in searches(parts, ApiModel(f"{address}/v1", str(tmp_path))).run(prompts)
        }
    assert found == by_prompt(parts, prompts)
    assert {mismatch.important for mismatch in found[8].mismatches} == {True, False}
