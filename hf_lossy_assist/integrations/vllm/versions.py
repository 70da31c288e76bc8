"""The versions of vLLM that the rules are known to work in, and a check of any other version's seams."""

from __future__ import annotations

import inspect
import zlib
from importlib import import_module

from ...errors import LossyUnsupportedError, warn_once

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
