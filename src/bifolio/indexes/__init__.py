"""Indexes: maximum inner product search."""
