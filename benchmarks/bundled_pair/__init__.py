"""The recipe of the bundled pair, its training, and its model cards; ``benchmarks.train_pair`` is the command."""
