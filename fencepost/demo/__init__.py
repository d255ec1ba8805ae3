"""The demonstration: real flights through a transactional pipeline that is killed again and again, checked against the truth."""
