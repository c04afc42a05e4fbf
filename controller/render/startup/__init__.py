"""Screens of engine start-ups."""
