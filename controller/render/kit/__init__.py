"""What screens share: lines, colours, rows, formats."""
