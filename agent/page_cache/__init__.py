"""Which pages of which files are in memory, and where."""
