"""Takes part in vLLM's set-up: reads the engine's lossy fields, checks requests, and names the worker and scheduler."""

from __future__ import annotations

import functools
import inspect
import zlib
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ...errors import LossyError, LossyUnsupportedError, LossyValueError, warn_once

if TYPE_CHECKING:
    from .settings import EngineSettings

_INSIDE = "hf_lossy_assist.integrations.vllm.inside"
_WORKERS = ("vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.worker.gpu_worker.Worker")
_LOSSY_WORKER = f"{_INSIDE}.worker.LossyWorker"

KNOWN = ("0.32.0",)
"""Versions in which the rules were run."""

TEXTS = {
    "sample.rejection_sampler:RejectionSampler.forward": (2106540034, 3533469511),
    "worker.gpu_model_runner:GPUModelRunner._sample": (1537872576,),
    "worker.gpu_model_runner:GPUModelRunner.sample_tokens": (1141230739,),
    "worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids": (1521259455, 3343221249),
    "worker.gpu_model_runner:GPUModelRunner._get_spec_decode_draft_probs": (331473500,),
    "spec_decode.llm_base_proposer:SpecDecodeBaseProposer._sample_draft_tokens": (2543488786,),
    "engine.input_processor:InputProcessor._validate_params": (2374320680,),
    "worker.gpu.model_runner:GPUModelRunner.sample": (4290952947,),
    "worker.gpu.model_runner:GPUModelRunner.add_requests": (3535818038,),
}
"""Checksums of sources that a worker repeats, or whose steps it counts on: of 0.32, and where it differs, of 0.33."""

CALLS = {
    "sample.rejection_sampler:rejection_sample": (
        "draft_token_ids num_draft_tokens max_spec_len cu_num_draft_tokens draft_probs target_logits bonus_token_ids "
        "sampling_metadata synthetic_mode synthetic_conditional_rates use_fp64_gumbel"
    ),
    "spec_decode.metadata:SpecDecodeMetadata": (
        "draft_token_ids num_draft_tokens cu_num_draft_tokens cu_num_sampled_tokens target_logits_indices "
        "bonus_logits_indices logits_indices"
    ),
    "sample.ops.topk_topp_sampler:apply_top_k_top_p": "logits k p",
    "core.sched.scheduler:Scheduler.update_from_output": "self scheduler_output model_runner_output",
    "metrics.stats:RequestSpecDecodeMetrics": (
        "num_spec_tokens histogram num_draft_tokens per_step_accepted per_step_drafted"
    ),
    "worker.gpu.spec_decode.rejection_sampler:RejectionSampler.__init__": "self sampler spec_config device",
    "worker.gpu.spec_decode.rejection_sampler:RejectionSampler.__call__": (
        "self logits input_batch draft_logits invalid_drafts"
    ),
    "worker.gpu.spec_decode.rejection_sampler:RejectionSampler._verify": (
        "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping idx_mapping_np expanded_idx_mapping "
        "expanded_local_pos seq_lens_upper_bound_np verify_draft_sampled"
    ),
    "worker.gpu.model_runner:GPUModelRunner.finish_requests": "self scheduler_output",
    "worker.gpu.sample.sampler:Sampler.apply_sampling_params": (
        "self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids expanded_local_pos "
        "seq_lens_upper_bound_np"
    ),
    "worker.gpu.model_states.interface:ModelState.add_request": "self req_index new_req_data",
}
"""Arguments of what a worker calls, or is called in place of. A version may add others that have defaults."""


def register() -> None:
    """Prepare this process for lossy engines; without ``lossy`` in an engine's configuration, nothing else happens.

    vLLM calls it by the entry point ``vllm.general_plugins``.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    if "lossy" in {x.name for x in fields(RequestSpecDecodeMetrics)}:
        return
    for kind in (RequestSpecDecodeMetrics, SpecDecodingStats):
        _add_counts(kind)
    RequestSpecDecodeMetrics.to_dict = _with_counts(RequestSpecDecodeMetrics.to_dict)
    EngineArgs.create_engine_config = _with_settings(EngineArgs.create_engine_config)
    InputProcessor.__init__ = _with_checks(InputProcessor.__init__)


def _add_counts(kind: type) -> None:
    """Give a dataclass that vLLM sends from the engine to the front end, field by field, the field ``lossy``."""
    for x in fields(kind):
        if x.default_factory is not MISSING:  # the decorator has removed it from the class
            setattr(kind, x.name, field(default_factory=x.default_factory))
    kind.__annotations__["lossy"] = dict[str, Any]
    kind.lossy = field(default_factory=dict)
    for name in ("__init__", "__repr__", "__eq__"):  # the decorator replaces none of them
        delattr(kind, name)
    dataclass(kind)


def _with_counts(to_dict: Any) -> Any:
    @functools.wraps(to_dict)
    def wrapped(self: Any) -> dict[str, Any]:
        return {**to_dict(self), **({"lossy": self.lossy} if self.lossy else {})}

    return wrapped


def _with_settings(create: Any) -> Any:
    @functools.wraps(create)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        config = create(*args, **kwargs)
        if settings_of(config) is not None:
            _take_over(config)
        return config

    return wrapped


def _with_checks(init: Any) -> Any:
    from vllm.exceptions import VLLMValidationError

    @functools.wraps(init)
    def wrapped(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        init(self, vllm_config, *args, **kwargs)
        settings, check = settings_of(vllm_config), self.validate_logits_processors_params

        def checked(params: Any) -> None:
            try:
                _check_request(settings, params)
            except LossyError as error:
                raise VLLMValidationError(str(error)) from error  # others become a 500 of the server
            check(params)

        self.validate_logits_processors_params = checked

    return wrapped


def _check_request(settings: EngineSettings | None, params: Any) -> None:
    if settings is not None:
        settings.check_request(params.extra_args, params.temperature, params.top_k, params.top_p, params.seed)
    elif found := next((name for name in params.extra_args or () if name.startswith("lossy")), None):
        raise LossyValueError(
            f"`{found}` of a request needs an engine that was started for it: add "
            "--additional-config '{\"lossy\": {}}' to vLLM's command"
        )


def settings_of(config: Any, device: Any = "cpu") -> EngineSettings | None:
    """Return the checked lossy fields of an engine's configuration, or None where it has none."""
    extra = config.additional_config
    if not isinstance(extra, dict) or "lossy" not in extra:
        return None
    from .settings import Drafting, EngineSettings

    draft = config.speculative_config
    if draft is None:
        raise LossyValueError(
            "`lossy` in `--additional-config` needs drafts; add `--speculative-config`, e.g. "
            '\'{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}\''
        )
    if draft.rejection_sample_method != "standard":
        raise LossyValueError(
            "`rejection_sample_method` in `--speculative-config` is vLLM's own rule, "
            f"{draft.rejection_sample_method!r}, and `lossy` in `--additional-config` names another; leave one out"
        )
    drafting = Drafting(
        method=draft.method,
        tokens=draft.num_speculative_tokens,
        keeps_probs=draft.draft_sample_method == "probabilistic" and draft.draft_model_config is not None,
        texts_on_host=not (config.scheduler_config.async_scheduling or config.use_v2_model_runner),
    )
    return EngineSettings.read(extra["lossy"], drafting, device)


def _take_over(config: Any) -> None:
    """Name the worker and the scheduler that decide by rules, in a configuration with lossy fields."""
    check_version()
    if config.use_v2_model_runner:
        warn_once(
            "the rules were not run on GPUs with vLLM's model runner V2, only its tensors' way on CPUs; "
            "VLLM_USE_V2_MODEL_RUNNER=0 chooses the one that was"
        )
    parallel, scheduler = config.parallel_config, config.scheduler_config
    if parallel.worker_cls not in (*_WORKERS, _LOSSY_WORKER):
        raise LossyUnsupportedError(
            f"`lossy` in `--additional-config` works with vLLM's workers {list(_WORKERS)}, but this engine has "
            f"{parallel.worker_cls!r}"
        )
    names = [f"{_INSIDE}.counting.{name}" for name in ("LossyScheduler", "LossyAsyncScheduler")]
    if scheduler.scheduler_cls not in (None, *names):
        raise LossyUnsupportedError(
            f"`scheduler_cls` can't be {scheduler.scheduler_cls!r} with `lossy` in `--additional-config`, whose own "
            "scheduler counts kept tokens; leave it out"
        )
    parallel.worker_cls = _LOSSY_WORKER
    scheduler.scheduler_cls = names[bool(scheduler.async_scheduling)]
    if config.observability_config.per_request_spec_decode_metrics == "none":
        config.observability_config.per_request_spec_decode_metrics = "summary"


def _find(seam: str) -> Any:
    """Return a function or class of vLLM, or None where it has none of the name."""
    module, _, name = seam.partition(":")
    try:
        return attrgetter(name)(import_module(f"vllm.v1.{module}"))
    except (ImportError, AttributeError):
        return None


def _takes(seam: str, arguments: str) -> bool:
    """Tell whether a seam still takes these arguments, in this order, and needs no others."""
    if (found := _find(seam)) is None:
        return False
    names, own = arguments.split(), list(inspect.signature(found).parameters.values())
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    others = [x for x in own[len(names) :] if x.default is x.empty and x.kind not in free]
    return [x.name for x in own[: len(names)]] == names and not others


def changed() -> list[str]:
    """Return the seams of the installed vLLM that differ from those that the workers were written for."""
    texts = {seam: _find(seam) for seam in TEXTS}
    others = [
        seam for seam, x in texts.items() if x is None or zlib.crc32(inspect.getsource(x).encode()) not in TEXTS[seam]
    ]
    return others + [seam for seam, arguments in CALLS.items() if not _takes(seam, arguments)]


def check_version() -> None:
    """Refuse a version of vLLM whose seams have changed, and warn of any other in which the rules were not run."""
    from vllm import __version__

    version = __version__.partition("+")[0]
    if version in KNOWN:
        return
    if others := changed():
        raise LossyUnsupportedError(
            f"`lossy` in `--additional-config` is known to work in vLLM {', '.join(KNOWN)}, but this is {version}, in "
            f"which {', '.join(others)} differ; install a known version"
        )
    warn_once(f"the rules were not run in vLLM {version}, but what they build on has not changed since {KNOWN[-1]}")
