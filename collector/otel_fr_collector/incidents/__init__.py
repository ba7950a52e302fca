"""From findings of the match engine to incidents: opened, updated, resolved."""
