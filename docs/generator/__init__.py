"""Makes the site's pages, from those of this folder and of the repository, and from the code."""
