"""What became of each GPU in scope: a verdict, its evidence and the next step. Pure."""
