"""The generated parts of the docs: tables and diagrams drawn from the code that they describe."""
