"""Callbacks for training frameworks. Each framework is imported with its module only."""
