"""Which fields a request's body may have, and with what in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_lossy_assist import LossyValueError, pairs
from hf_lossy_assist.compat.serving import Endpoint
from hf_lossy_assist.integrations.serving import RequestLimits
from hf_lossy_assist.integrations.serving.request_body import check_body

CHAT = Endpoint(("messages",), {"n", "user"}, {"date_string"})
MESSAGES = [{"role": "user", "content": "x"}]


def check(limits: RequestLimits | None = None, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES} | fields
    check_body(body, CHAT, limits or RequestLimits())
    return body


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 16384, "temperature": 0, "top_p": 1, "seed": -1, "frequency_penalty": 2, "stream": True},
        {"stop": ["a", "b", "c", "d"], "user": "anyone", "n": "x", "verbosity": 3, "tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False, "date_string": "today"}},
        {"lossy_mode": ["topk"], "lossy_config": {"k": 3}, "lossy_head": {}},
        {"generation_config": json.dumps({"num_assistant_tokens": "auto", "eos_token_id": 3, "num_beams": 1})},
        {"generation_config": json.dumps({"lossy_mode": "topk", "num_beams": None, "guidance_scale": None})},
        {"generation_config": pairs.load("arithmetic").target.generation_config.to_json_string()},
    ],
)
def test_what_may_be_set(fields: dict):
    assert check(**fields) == {"messages": MESSAGES} | fields


def test_null_counts_as_left_out_and_a_bias_may_be_an_int():
    assert check(chat_template_kwargs=None, max_tokens=None) == {"messages": MESSAGES}
    bias = check(logit_bias={"5": 1})["logit_bias"]
    assert bias == {"5": 1.0}
    assert isinstance(bias["5"], float)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": None}, "`messages` of a request is required"),
        ({"messages": []}, "`messages` of a request has to have at least 1 item, but is []"),
        ({"messages": "x"}, "`messages` of a request has to be a valid list, but is 'x'"),
        ({"messages": ["x"]}, "`messages.0` of a request has to be an object, but is 'x'"),
        ({"messages": [{}]}, "`messages.0.role` of a request is required"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "`messages` of a request has to be JSON in UTF-8"),
        ({"max_tokens": -5}, "`max_tokens` of a request has to be greater than or equal to 1, but is -5"),
        ({"max_tokens": 16385}, "`max_tokens` of a request has to be at most 16384, .* `new_tokens`, but is 16385"),
        ({"max_tokens": True}, "`max_tokens` of a request has to be a valid integer, but is True"),
        ({"max_tokens": "5"}, "`max_tokens` of a request has to be a valid integer, but is '5'"),
        ({"temperature": float("nan")}, "`temperature` of a request has to be a finite number, but is nan"),
        ({"temperature": 1e-300}, "`temperature` of a request has to be 0, or >= 0.001 and <= 100, but is 1e-300"),
        ({"stream": "no"}, "`stream` of a request has to be a valid boolean, but is 'no'"),
        ({"stop": [""]}, "`stop.0` of a request has to have at least 1 character, but is ''"),
        ({"stop": list("abcde")}, "`stop` of a request has to be at most 4, .* limit `stop_strings`, but is 5"),
        ({"stop": "x" * 129}, "`stop` of a request has to be at most 128, .* limit `stop_characters`, but is 129"),
        ({"logit_bias": {"x": 1}}, "`logit_bias.x.*` of a request has to match pattern .*, but is 'x'"),
        ({"new_field": 1}, "`new_field` can't be set by a request"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "`chat_template_kwargs.chat_template` can't be set"),
        ({"generation_config": {}}, "`generation_config` of a request has to be a string with a JSON object in it"),
        ({"generation_config": "{"}, "`generation_config` of a request has to be a string with a JSON object in it"),
        ({"generation_config": "[]"}, "`generation_config` of a request has to be an object, but is []"),
    ],
)  # fmt: skip
def test_what_may_not_be_set_or_can_not_work(fields: dict, message: str):
    with pytest.raises(LossyValueError, match="^" + message.replace("[]", r"\[\]")):
        check(**fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_implementation", "static"),
        ("compile_config", {}),
        ("custom_generate", "/etc"),
        ("is_assistant", True),
        ("lossy_assistant", "/etc"),
        ("max_new_tokens", 16385),
        ("num_assistant_tokens", 65),
        ("num_beams", 2),
        ("num_return_sequences", 2),
        ("prompt_lookup_num_tokens", 65),
        ("speculation_type", "x"),
        ("temperature", 0),
        ("use_cache", False),
        ("validate", None),
        ("to_dict", False),
    ],
)
def test_what_a_generation_config_may_not_set(name: str, value: object):
    with pytest.raises(LossyValueError, match=f"^`generation_config.{name}` "):
        check(generation_config=json.dumps({name: value}))


def test_the_operator_sets_the_limits():
    assert check(RequestLimits(new_tokens=20_000), max_tokens=20_000)
    with pytest.raises(LossyValueError, match="at most 9, which is this server's limit `new_tokens`, but is 10"):
        check(RequestLimits(new_tokens=9), max_tokens=10)
    for value in (0, -1, True, 0.5, "many", None):
        with pytest.raises(LossyValueError, match="`new_tokens` has to be a positive integer"):
            RequestLimits(new_tokens=value)
