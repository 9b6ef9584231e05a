"""Generators: next-token distributions, each passage read on its own."""
