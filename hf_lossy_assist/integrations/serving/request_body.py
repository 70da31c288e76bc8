"""The schema of a request's body: fields that it lacks are refused, and values above their limits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError
from transformers import GenerationConfig

from ...compat.serving import Endpoint
from ...errors import LossyValueError
from ...heads.checks import brief
from .settings import RequestLimits, above

TEMPLATE_FIELDS = ("enable_thinking", "reasoning_effort", "thinking", "thinking_budget")
"""Variables that ``chat_template_kwargs`` may set, besides those that the operator has set."""

UNREAD = (
    "access_programs", "background_options", "context_management", "conversation", "metadata", "moderation",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier",
    "stream_options", "verbosity",
)  # fmt: skip
"""OpenAI's fields that transformers accepts and never reads."""

_GENERATION = vars(GenerationConfig()).keys()
_IN_A_STRING = " be a string with a JSON object in it"
_SAID = {"json_invalid": _IN_A_STRING, "json_type": _IN_A_STRING, "model_type": " be an object"}


def check_body(body: dict[str, Any], endpoint: Endpoint, limits: RequestLimits) -> None:
    """Refuse unknown fields, and values that can't work or exceed their limits; remove null fields from the body."""
    for name in [name for name, value in body.items() if value is None]:
        del body[name]
    for name, value in body.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (RecursionError, ValueError) as error:
            raise LossyValueError(f"`{name}` of a request has to be JSON in UTF-8") from error
    for name in endpoint.required:
        if name not in body:
            raise LossyValueError(f"`{name}` of a request is required")
    read = {name: value for name, value in body.items() if name not in (*UNREAD, *endpoint.unread)}
    try:
        checked = RequestBody.model_validate(read, context=limits)
    except ValidationError as error:
        raise LossyValueError(_refusal(error, limits)) from None
    variables = {*TEMPLATE_FIELDS, *endpoint.template_variables}
    for name in checked.chat_template_kwargs:
        if name not in variables:
            raise LossyValueError(f"`chat_template_kwargs.{name:.100}` can't be set by a request; leave it out")
    if "logit_bias" in body:
        body["logit_bias"] = checked.logit_bias  # floats, since transformers refuses integers


def _refusal(error: ValidationError, limits: RequestLimits) -> str:
    first = error.errors(include_url=False)[0]
    kind, field = first["type"], f"`{'.'.join(map(str, first['loc']))}`"
    if kind == "limit":
        return above(field, first["ctx"]["size"], first["ctx"]["limit"], limits)
    if kind == "extra_forbidden":
        return f"{field} can't be set by a request; leave it out"
    if kind == "missing":
        return f"{field} of a request is required"
    said = _SAID.get(kind) or re.sub(r"^\w+ should| after validation, not 0", "", first["msg"])
    return f"{field} of a request has to{said}, but is {brief(first['input'])}"


def _at_most(limit: str, size: Callable[[Any], float] = lambda value: value) -> AfterValidator:
    def check(value: Any, info: ValidationInfo) -> Any:
        if size(value) > getattr(info.context, limit):
            raise PydanticCustomError("limit", "too much", {"limit": limit, "size": size(value)})
        return value

    return AfterValidator(check)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _zero_or_more(value: float) -> float:
    if value and not 1e-3 <= value <= 100:
        raise PydanticCustomError("temperature", "Input should be 0, or >= 0.001 and <= 100")
    return value


Share = Annotated[float, Field(ge=0, le=1)]
NewTokens = Annotated[int, Field(ge=1), _at_most("new_tokens")]
Drafted = Annotated[int, Field(ge=1), _at_most("num_assistant_tokens")]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], BeforeValidator(_listed)]
StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(min_length=1),
    _at_most("stop_strings", len),
    _at_most("stop_characters", lambda strings: sum(map(len, strings))),
    BeforeValidator(_listed),
]
Token = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class RequestMessage(BaseModel):
    """One of ``messages``; transformers checks its other fields."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    # `check_request` checks their values.
    lossy_mode: Any = None
    lossy_config: Any = None
    lossy_head: Any = None


class RequestGeneration(_Fields):
    """``generation_config`` of a request; transformers' other fields may be null or false."""

    max_new_tokens: NewTokens = 1
    min_new_tokens: Annotated[int, Field(ge=0), _at_most("new_tokens")] = 0
    max_time: Annotated[float, Field(ge=0)] = 0
    stop_strings: StopStrings = []
    do_sample: bool = False
    temperature: Annotated[float, Field(ge=1e-3, le=100)] = 1
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Share = 1
    min_p: Share = 0
    top_h: Annotated[float, Field(gt=0, le=1)] = 1
    typical_p: Annotated[float, Field(gt=0, le=1)] = 1
    epsilon_cutoff: Share = 0
    eta_cutoff: Share = 0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1
    no_repeat_ngram_size: Annotated[int, Field(ge=0)] = 0
    renormalize_logits: bool = False
    bos_token_id: TokenIds = []
    eos_token_id: TokenIds = []
    pad_token_id: TokenIds = []
    num_assistant_tokens: Annotated[Drafted, BeforeValidator(lambda value: 1 if value == "auto" else value)] = 1
    num_assistant_tokens_schedule: Literal["constant", "heuristic", "heuristic_transient"] = "constant"
    assistant_confidence_threshold: Share = 0
    prompt_lookup_num_tokens: Drafted = 1
    max_matching_ngram_size: Drafted = 1
    num_beams: Literal[1] = 1
    num_return_sequences: Literal[1] = 1
    use_cache: Literal[True] = True
    transformers_version: str = ""
    from_model_config: Annotated[bool, Field(alias="_from_model_config")] = False

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_off(cls, value: Any) -> Any:
        def is_off(name: str) -> bool:
            given = value[name]
            return name in _GENERATION and (given is None or (given is False and name not in cls.model_fields))

        return {name: value[name] for name in value if not is_off(name)} if isinstance(value, dict) else value


class RequestBody(_Fields):
    """The fields that a request for text may set."""

    model: str = ""
    messages: Annotated[list[RequestMessage], Field(min_length=1)] = []
    prompt: Annotated[str, Field(min_length=1)] = ""
    input: Annotated[list[Any], Field(min_length=1), BeforeValidator(_listed)] = []
    instructions: str = ""
    suffix: str = ""
    stream: bool = False
    tools: list[dict[str, Any]] = []
    parallel_tool_calls: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    generation_config: Json[RequestGeneration] = RequestGeneration()
    max_tokens: NewTokens = 1
    max_completion_tokens: NewTokens = 1
    max_output_tokens: NewTokens = 1
    temperature: Annotated[float, AfterValidator(_zero_or_more)] = 1
    top_p: Share = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    frequency_penalty: Annotated[float, Field(gt=-1, le=2)] = 0
    logit_bias: Annotated[dict[Token, Bias], Field(min_length=1)] = {}
    stop: StopStrings = []
