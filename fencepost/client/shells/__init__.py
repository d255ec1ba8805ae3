"""The shells: the client's cores with sockets and clocks, blocking or async."""
