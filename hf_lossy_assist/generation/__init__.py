"""Turns one ``generate()`` call into one run: its rule, its refusals, its drafter and its runners."""
