"""Pages that show an output token by token."""
