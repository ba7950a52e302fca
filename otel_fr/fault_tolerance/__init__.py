"""What a job tells otel-fr of its progress, and what otel-fr tells the job. Imports no torch."""
