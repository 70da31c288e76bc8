"""A hostile trial of the package: thousands of seeded cases of every part, by one command."""
