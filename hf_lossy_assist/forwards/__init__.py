"""A model's forwards over a text in the making: its cache, mask and positions."""
