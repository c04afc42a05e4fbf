"""Engine logs to memory budgets, per service invocation and rank (pure)."""
