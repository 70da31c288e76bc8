"""The loop, and what it keeps while it runs."""
