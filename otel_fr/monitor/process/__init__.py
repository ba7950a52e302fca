"""The rank's process as the operating system shows it: how it ended, its stacks, what it waits for."""
