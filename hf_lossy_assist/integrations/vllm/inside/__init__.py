"""Modules that run inside vLLM's processes: they import vLLM, and only vLLM imports them."""
