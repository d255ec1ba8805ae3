// Cargo wants a file.
