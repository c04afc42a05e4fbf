"""Log lines on screen: events kept whole, equal ones of many hosts folded (pure)."""
