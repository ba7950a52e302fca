"""How long ranks wait for the rank that comes last, from each rank's own times: the same live and from files."""
