"""Other systems that the rules work in."""
