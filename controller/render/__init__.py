"""Screens and data formats: pure functions from the envelope to lines."""
