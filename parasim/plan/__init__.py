"""Planning: other layouts of the same run."""
