"""Who is tied to whom: one walk over /proc, closed over ties, and who answers for it."""
