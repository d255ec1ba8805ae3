"""The cores that decide: controller, partitions, transactions and groups, and the node that routes."""
