"""The recipe of the bundled pair and its training; ``benchmarks.train_pair`` is the command."""
