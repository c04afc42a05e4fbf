"""Giving page cache back: its plan, its run, its section."""
