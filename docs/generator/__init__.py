"""Makes the documentation's pages: those of this folder and of the repository, and those that follow from the code."""
