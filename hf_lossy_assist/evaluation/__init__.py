"""Measurements of decoding modes: single requests, comparisons of many modes, and plots."""
