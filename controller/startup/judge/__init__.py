"""What a budget means: caps, causes, levers (pure)."""
