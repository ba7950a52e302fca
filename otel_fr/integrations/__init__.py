"""Callbacks for training frameworks. Each module imports only its own framework."""
