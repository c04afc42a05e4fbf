"""The stable answer: envelope, exit status, folding of equal results (pure)."""
