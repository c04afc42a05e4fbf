"""What only looks: snapshots, their differences, checks, a start followed."""
