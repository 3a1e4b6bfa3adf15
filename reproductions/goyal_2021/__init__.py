"""Goyal (thesis, 2021): scheduled sampling (Chapter 3) and masked models as energies (Chapter 6)."""
