"""One budget identity an engine family: what its source computes, from the log's own figures."""
