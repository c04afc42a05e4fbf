"""Facts to budgets per invocation and rank (pure)."""
