"""What is wrong with a start: each subject a file, findings in one shape (pure)."""
