"""The gate at the desk: the standalone file that it can be written as."""
