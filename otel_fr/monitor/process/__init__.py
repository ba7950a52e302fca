"""The rank's process as the operating system shows it: its end, its stacks, what it waits for."""
