"""Incident bundles: evidence of many hosts in one archive that can be checked and read anywhere."""
