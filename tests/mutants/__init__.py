"""Plants faults in the library: see `__main__`."""
