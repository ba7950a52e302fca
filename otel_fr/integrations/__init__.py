"""Callbacks for training frameworks, each of which is imported with its module only."""
