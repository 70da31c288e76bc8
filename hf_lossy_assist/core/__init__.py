"""Data: what the stages of a round hand to each other, and what is counted of them. Needs torch alone."""
