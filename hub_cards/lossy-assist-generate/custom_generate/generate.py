"""Lossy assisted generation for `generate(custom_generate=...)`; the code is in the package hf_lossy_assist."""

from hf_lossy_assist.integrations.custom_generate import generate

__all__ = ["generate"]
