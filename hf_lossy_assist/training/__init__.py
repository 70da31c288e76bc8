"""Heads from labelled hidden states: mined ones, or ones that people have marked."""
