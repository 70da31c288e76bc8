"""Data: the messages between a round's stages, and the counts of a call. Needs torch alone."""
