"""Probes: functions that measure. One subject a file; `agent/declare.py` lists them."""
