"""The way in over SSH (asyncssh)."""
