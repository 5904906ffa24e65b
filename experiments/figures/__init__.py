"""One module for each figure or table of a paper, and their registry."""
