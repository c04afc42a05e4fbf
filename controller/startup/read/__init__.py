"""Log lines to facts (pure)."""
