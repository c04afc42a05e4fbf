"""The life of a run: fan-out, settings, events."""
