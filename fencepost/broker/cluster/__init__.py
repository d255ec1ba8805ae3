"""The cluster: the controller that owns topics and leadership, and the nodes that follow its log."""
