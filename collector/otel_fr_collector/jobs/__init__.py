"""What the ranks have sent, decoded, bounded and lined up by run, process group and collective."""
