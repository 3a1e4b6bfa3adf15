"""Corpora of the reproductions: the catalogue, downloads and readers."""
