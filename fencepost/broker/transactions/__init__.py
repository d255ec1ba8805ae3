"""The transaction coordinator over `__transaction_state`."""
