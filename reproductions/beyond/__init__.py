"""Experiments that none of the papers has."""
