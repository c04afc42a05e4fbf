"""Reclaim: classes, plan and verdict are pure; the ladder and the run do the I/O."""
