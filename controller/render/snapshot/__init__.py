"""Screens of snapshots."""
