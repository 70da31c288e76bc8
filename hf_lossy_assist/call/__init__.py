"""From one ``generate()`` call to one run: what it asks for, what is refused, who drafts, who verifies."""
