"""Text at the edges: sizes and words, escaping, YAML with positions (pure)."""
