"""Models padded to the sizes of larger ones; ``benchmarks.grown_models`` is the command."""
