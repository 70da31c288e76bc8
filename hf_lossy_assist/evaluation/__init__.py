"""What a way of decoding costs and yields: one mode, one request, comparisons of many, and how they are drawn."""
