"""The cores that ask: producer, consumer and admin, with thin shells around them."""
