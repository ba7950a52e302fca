"""How long ranks wait for the one that comes last, from each rank's own times: the same live and from files."""
