"""The rules inside vLLM's engine: ``--additional-config '{"lossy": {"mode": "typical"}}'``.

vLLM loads :func:`register` in each of its processes by an entry point. No module of this folder imports vLLM before
vLLM itself has asked for it.
"""

from .plugin import register

__all__ = ["register"]
