"""Readers and splitters: files become clean text with exact places."""
