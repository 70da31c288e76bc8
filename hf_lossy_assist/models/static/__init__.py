"""Runs models with fixed shapes on static caches, which can be compiled."""
