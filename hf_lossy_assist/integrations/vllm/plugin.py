"""Takes part in vLLM's set-up: reads the engine's lossy fields, checks requests, and names the worker and scheduler."""

from __future__ import annotations

import functools
import inspect
import zlib
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...errors import LossyError, LossyUnsupportedError, LossyValueError, warn_once

if TYPE_CHECKING:
    from .settings import EngineSettings

_INSIDE = "hf_lossy_assist.integrations.vllm.inside"
_WORKERS = ("vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.worker.gpu_worker.Worker")
_LOSSY_WORKER = f"{_INSIDE}.worker.LossyWorker"

KNOWN = ("0.32.0",)
"""Versions whose every seam was tested."""

SEAMS = {
    "sample.rejection_sampler:RejectionSampler.forward": 2106540034,
    "sample.rejection_sampler:rejection_sample": 72205067,
    "worker.gpu_model_runner:GPUModelRunner._sample": 1537872576,
    "worker.gpu_model_runner:GPUModelRunner.sample_tokens": 1141230739,
    "spec_decode.metadata:SpecDecodeMetadata": 1095232393,
    "worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids": 1521259455,
    "worker.gpu_model_runner:GPUModelRunner._get_spec_decode_draft_probs": 331473500,
    "sample.ops.topk_topp_sampler:apply_top_k_top_p": 2653146842,
    "spec_decode.llm_base_proposer:SpecDecodeBaseProposer._sample_draft_tokens": 2543488786,
    "core.sched.scheduler:Scheduler.update_from_output": 2047671123,
    "metrics.stats:RequestSpecDecodeMetrics": 1064080692,
    "engine.input_processor:InputProcessor._validate_params": 2374320680,
    "worker.gpu.spec_decode.rejection_sampler:RejectionSampler.__init__": 2530721603,
    "worker.gpu.spec_decode.rejection_sampler:RejectionSampler.__call__": 1469355040,
    "worker.gpu.spec_decode.rejection_sampler:RejectionSampler._verify": 2752576642,
    "worker.gpu.model_runner:GPUModelRunner.sample": 4290952947,
    "worker.gpu.model_runner:GPUModelRunner.finish_requests": 232514368,
    "worker.gpu.model_runner:GPUModelRunner.add_requests": 3535818038,
    "worker.gpu.sample.sampler:Sampler.apply_sampling_params": 4016138293,
    "worker.gpu.model_states.interface:ModelState.add_request": 2508681679,
}
"""Checksums of the sources that a worker builds on, in the newest known version."""


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


def checksum(seam: str) -> int | None:
    """Return the checksum of a function's source, or None where vLLM has none of the name."""
    module, _, name = seam.partition(":")
    try:
        found = import_module(f"vllm.v1.{module}")
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return zlib.crc32(inspect.getsource(found).encode())


def check_version() -> None:
    """Refuse a version of vLLM whose seams differ from a known version's, and warn of any other unknown version."""
    from vllm import __version__

    version = __version__.partition("+")[0]
    if version in KNOWN:
        return
    if changed := [seam for seam, known in SEAMS.items() if checksum(seam) != known]:
        raise LossyUnsupportedError(
            f"`lossy` in `--additional-config` is known to work in vLLM {', '.join(KNOWN)}, but this is {version}, in "
            f"which {', '.join(changed)} differ; install a known version"
        )
    warn_once(f"the rules were not tested in vLLM {version}, but what they build on is as in vLLM {KNOWN[-1]}")
