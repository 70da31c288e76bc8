"""Forwards of fixed shape on static caches, which can be compiled."""
