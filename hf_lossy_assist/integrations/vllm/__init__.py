"""The rules inside vLLM's engine: ``--additional-config '{"lossy": {"mode": "typical"}}'``.

vLLM loads :func:`register` in each of its processes by an entry point. It takes part in vLLM's set-up: reads the
engine's lossy fields, checks requests, and names the worker. No module of this folder imports vLLM before vLLM itself
has asked for it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ...errors import LossyError, LossyUnsupportedError, LossyValueError, warn_once

if TYPE_CHECKING:
    from .settings import EngineSettings

_WORKERS = ("vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.worker.gpu_worker.Worker")
_LOSSY_WORKER = "hf_lossy_assist.integrations.vllm.inside.worker.LossyWorker"

KNOWN = ("0.32", "0.33")
"""Versions whose functions the rules were written for."""


def register() -> None:
    """Prepare this process for lossy engines; without ``lossy`` in an engine's configuration, nothing else happens.

    vLLM calls it by the entry point ``vllm.general_plugins``.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.input_processor import InputProcessor

    EngineArgs.create_engine_config = _with_settings(EngineArgs.create_engine_config)
    InputProcessor.__init__ = _with_checks(InputProcessor.__init__)


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
        rounds_head=getattr(draft, "draft_lm_head_quantization", None) is not None,  # since vLLM 0.33
        texts_on_host=not (config.scheduler_config.async_scheduling or config.use_v2_model_runner),
    )
    return EngineSettings.read(extra["lossy"], drafting, device)


def _take_over(config: Any) -> None:
    """Name the worker that decides by rules, in a configuration with lossy fields."""
    from vllm import envs

    check_version()
    if envs.VLLM_USE_RUST_FRONTEND:
        raise LossyUnsupportedError(
            "`lossy` in `--additional-config` checks requests in vLLM's front end of Python, which "
            "VLLM_USE_RUST_FRONTEND=1 replaces; unset it"
        )
    if config.use_v2_model_runner:
        warn_once(
            "the rules were run with vLLM's model runner V2 on a CPU alone, where Triton interpreted its kernels; "
            "VLLM_USE_V2_MODEL_RUNNER=0 chooses V1"
        )
    parallel = config.parallel_config
    if parallel.worker_cls not in (*_WORKERS, _LOSSY_WORKER):
        raise LossyUnsupportedError(
            f"`lossy` in `--additional-config` works with vLLM's workers {list(_WORKERS)}, but this engine has "
            f"{parallel.worker_cls!r}"
        )
    parallel.worker_cls = _LOSSY_WORKER


def check_version() -> None:
    """Refuse a version of vLLM whose functions may differ from those that the rules take the place of."""
    from vllm import __version__

    if ".".join(__version__.split(".")[:2]) not in KNOWN:
        raise LossyUnsupportedError(
            f"`lossy` in `--additional-config` works in vLLM {' and '.join(KNOWN)}, but this is {__version__}; install "
            "'hf-lossy-assist[vllm]'"
        )
