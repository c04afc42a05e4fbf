"""What is kept at the desk: history, trail."""
