"""Sources that show how far the device is: PyTorch's recorder, NCCL's RAS and NCCL Inspector."""
