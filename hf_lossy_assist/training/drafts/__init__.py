"""Training drafts for a target of one's own: texts that it writes, its states, EAGLE-3 heads and small models."""
