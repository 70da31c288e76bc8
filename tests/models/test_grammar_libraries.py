"""JSON by a schema, with the processors of grammar libraries themselves (``make test-structured``)."""

from __future__ import annotations

import json
import string

import pytest
import torch
from transformers import LlamaTokenizerFast

from hf_lossy_assist import enabled
from hf_lossy_assist.models.own_states import copied
from tests.tiny_models import VOCAB, noisy_copy, padded, prompt, tiny

TARGET = tiny("llama")
DRAFT = noisy_copy(TARGET, 0.03)
TOKENS = ["<pad>", "<s>", "</s>", *'{}[]":, ', *string.digits, *string.ascii_lowercase, "name", "true", "false"]
TOKENS += [letter + "a" for letter in string.ascii_lowercase][: VOCAB - len(TOKENS)]
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]{0,12}$"},
            "ok": {"type": "boolean"},
            "marks": {"type": "array", "items": {"enum": [1, 2, 12]}, "minItems": 2, "maxItems": 5},
        },
        "required": ["name", "ok", "marks"],
        "additionalProperties": False,
    }
)
DRAFTING = {
    "chain": {"assistant_model": DRAFT},
    "tree": {"assistant_model": DRAFT, "lossy_config": {"tree": {"depth": 3, "nodes": 12, "top_k": 4}}},
    "look-up": {"prompt_lookup_num_tokens": 4},
}


def compiled(name: str = "name"):
    xgrammar = pytest.importorskip("xgrammar")
    tokens = xgrammar.TokenizerInfo(TOKENS, vocab_size=VOCAB, stop_token_ids=[2])
    schema = SCHEMA.replace('"name"', f'"{name}"')
    return xgrammar.GrammarCompiler(tokens).compile_json_schema(schema, any_whitespace=False)


def of_xgrammar():
    grammar = compiled()
    from xgrammar.contrib.hf import LogitsProcessor

    return LogitsProcessor(grammar)


def of_outlines_core():
    outlines_core = pytest.importorskip("outlines_core")
    backend = pytest.importorskip("outlines.backends.outlines_core")
    from outlines_core.json_schema import build_regex_from_schema

    vocabulary = outlines_core.Vocabulary(2, {token: [i] for i, token in enumerate(TOKENS) if i > 2})
    index = outlines_core.Index(build_regex_from_schema(SCHEMA), vocabulary)
    return backend.OutlinesCoreLogitsProcessor(index, "torch")


def of_outlines_with_xgrammar():
    backend = pytest.importorskip("outlines.backends.xgrammar")
    return backend.XGrammarLogitsProcessor(compiled(), "torch")


class Tokenizer:
    """What llguidance asks of a tokenizer."""

    eos_token_id, bos_token_id, special_token_ids = 2, 1, (0, 1, 2)
    tokens = tuple(token.encode() for token in TOKENS)

    def __call__(self, text: bytes) -> list[int]:
        return [TOKENS.index(chr(byte)) for byte in text]


def of_outlines_with_llguidance():
    llguidance = pytest.importorskip("llguidance")
    backend = pytest.importorskip("outlines.backends.llguidance")
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer()))
    grammar = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
    return backend.LLGuidanceLogitsProcessor(grammar, tokenizer, "torch")


EBNF = r"""
root ::= "{\"name\": \"" ([a-z] [a-z]? [a-z]?)? "\", \"ok\": " ("true" | "false") ", \"marks\": [" marks "]}"
marks ::= mark ", " mark (", " mark)?
mark ::= "1" | "2" | "12"
"""


def of_transformers_cfg():
    grammars = pytest.importorskip("transformers_cfg.grammar_utils")
    from transformers_cfg.generation.logits_process import GrammarConstrainedLogitsProcessor

    tokens = {token.replace(" ", "▁"): i for i, token in enumerate(TOKENS)}
    tokenizer = LlamaTokenizerFast(tokens, [], unk_token="<pad>", pad_token="<pad>")
    return GrammarConstrainedLogitsProcessor(grammars.IncrementalGrammarConstraint(EBNF, "root", tokenizer))


LIBRARIES = pytest.mark.parametrize(
    "library",
    [of_xgrammar, of_outlines_core, of_outlines_with_xgrammar, of_outlines_with_llguidance, of_transformers_cfg],
)


def generate(library, inputs=None, **kwargs):
    inputs = {"input_ids": prompt(9)} if inputs is None else inputs
    with enabled(TARGET):
        return TARGET.generate(
            **inputs, **{"do_sample": False, "max_new_tokens": 90, "logits_processor": [library()]} | kwargs
        )


def parsed(row: torch.Tensor, start: int) -> dict:
    return json.loads("".join(TOKENS[token] for token in row[start:].tolist() if token > 2))


@LIBRARIES
@pytest.mark.parametrize("drafting", DRAFTING)
def test_greedy_json_is_plain_s(library, drafting: str):
    plain = generate(library)
    ours = generate(library, **DRAFTING[drafting], lossy_mode="lossless")
    assert ours.tolist() == plain.tolist()
    assert set(parsed(ours[0], 9)) == {"name", "ok", "marks"}


@LIBRARIES
@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("mode", ["topk", "typical"])
def test_lossy_json_parses(library, mode: str, do_sample: bool, drafting: str):
    kwargs = DRAFTING[drafting]
    kwargs = kwargs | {"lossy_config": kwargs.get("lossy_config", {}) | {"seed": 3, "scope": {"except": []}}}
    ours = generate(library, **kwargs, lossy_mode=mode, do_sample=do_sample)
    assert set(parsed(ours[0], 9)) == {"name", "ok", "marks"}


@LIBRARIES
def test_a_lossy_rule_is_lossless_by_itself(library):
    lossy = {"assistant_model": noisy_copy(TARGET, 0.5), "lossy_mode": "topk", "lossy_config": {"k": VOCAB}}
    with pytest.warns(UserWarning, match=r"'topk' decodes losslessly, because \w+ .*scope="):
        ours = generate(library, **lossy)
    assert ours.tolist() == generate(library).tolist()
    assert (
        ours.tolist() != generate(library, **lossy | {"lossy_config": {"k": VOCAB, "scope": {"except": []}}}).tolist()
    )


@pytest.mark.parametrize("drafting", DRAFTING)
def test_each_row_may_have_a_grammar_of_its_own(drafting: str):
    """Rows of one length, since plain generation itself calls no matcher of a row that has ended."""

    def of_rows():
        pytest.importorskip("xgrammar")
        from xgrammar.contrib.hf import LogitsProcessor

        return LogitsProcessor([compiled(name) for name in ("first", "second", "third")])

    inputs = {"input_ids": torch.cat([prompt(9, seed=seed) for seed in range(3)])}
    plain = generate(of_rows, inputs)
    ours = generate(of_rows, inputs, **DRAFTING[drafting], lossy_mode="lossless")
    assert ours.tolist() == plain.tolist()
    assert [next(iter(parsed(row, 9))) for row in ours] == ["first", "second", "third"]


@LIBRARIES
def test_every_row_of_a_batch_parses(library):
    if library is of_transformers_cfg:
        pytest.skip("it raises in plain generation too, once a row has ended")
    plain = generate(library, padded())
    ours = generate(library, padded(), assistant_model=DRAFT, lossy_mode="lossless")
    assert ours.tolist() == plain.tolist()
    assert all(set(parsed(row, 11)) == {"name", "ok", "marks"} for row in ours)


def test_a_guide_is_copied_without_its_index():
    processor = of_outlines_core()
    text = prompt(5)
    processor(text, torch.zeros(1, VOCAB))
    token = TOKENS.index("{")
    processor(torch.cat([text, torch.tensor([[token]])], dim=1), torch.zeros(1, VOCAB))
    own = copied(processor, [token])
    assert own.index is processor.index
    assert own._guides[0] is not processor._guides[0]
    assert own._guides[0].get_state() == processor._guides[0].get_state()
    own._guides[0].advance(TOKENS.index('"'), return_tokens=False)
    assert own._guides[0].get_state() != processor._guides[0].get_state()
