"""What runs in the other process. It imports the standard library alone, so that it starts in milliseconds."""
