"""Training of heads from labelled hidden states, which are mined or marked by people."""
