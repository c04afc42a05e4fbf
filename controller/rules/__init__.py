"""Playbooks: their files, fields, rules and judgement (pure)."""
