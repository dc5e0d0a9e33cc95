"""Benchmarks: what one core of timerd does, measured from outside on a real `timerd serve`. See README.md."""
