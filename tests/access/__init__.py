"""Access control: who a connection is, and what it may do."""
