"""Running a model over a text: cache, inputs, LM head, and the target of a call."""
