"""Encoders: questions and passages to vectors."""
