"""Other programs for neural machine translation, measured beside nmt on one machine in one run: `make bench-rivals`."""
