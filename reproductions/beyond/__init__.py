"""Experiments beyond those of the papers."""
