"""vLLM's worker for CPUs; its module may only be imported where there is no GPU."""

from vllm.v1.worker.cpu_worker import CPUWorker

from .worker import LossyWork


class LossyCPUWorker(LossyWork, CPUWorker):
    """vLLM's worker for CPUs."""
