"""The part that runs at the desk: who, how to get there, what to ask, how to judge and show it."""
