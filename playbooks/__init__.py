"""YAML only: audits, ladder parameters, engine patterns, the protect list."""
