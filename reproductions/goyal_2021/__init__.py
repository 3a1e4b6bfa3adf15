"""Goyal (thesis, 2021): Figure 3.1, and masked models as energies (Chapter 6)."""
