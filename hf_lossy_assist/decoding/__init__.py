"""The decoding loop, and its state."""
