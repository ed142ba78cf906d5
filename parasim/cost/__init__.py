"""Kernels and their seconds: prices, and the profiles of fitted numbers that scale them."""
