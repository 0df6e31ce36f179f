"""Devices, as libraries of NVIDIA know them."""
