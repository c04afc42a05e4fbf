"""Readings to one table of bytes (pure)."""
