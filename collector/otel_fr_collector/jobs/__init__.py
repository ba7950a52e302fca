"""The telemetry of all ranks: decoded, bounded, and lined up by run, process group and collective."""
