"""Screens of reclaim."""
