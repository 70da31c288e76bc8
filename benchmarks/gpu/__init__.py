"""What decoding should cost on a GPU, and what it does: predictions, and one check in parts that takes nine minutes."""
