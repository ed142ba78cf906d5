"""Models: their sizes, where they come from, and the closed forms of their cost."""
