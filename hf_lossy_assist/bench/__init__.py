"""Measurements: what a rule keeps, and what that costs. Nothing here is needed to generate."""
