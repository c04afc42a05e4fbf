"""Who: inventory, selectors, node sets, addresses, GPU scopes (pure but for files)."""
