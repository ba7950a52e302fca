"""Flight-recorder files: `write` makes them, `read` reads them and PyTorch's own without running what is in them."""
