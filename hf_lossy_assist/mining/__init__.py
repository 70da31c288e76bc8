"""Training data for heads: AutoJudge's search for important tokens, and SPRINTER's ratios of probabilities."""
