"""What the target says about a draft."""
