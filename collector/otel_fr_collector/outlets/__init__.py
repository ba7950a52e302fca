"""Where incidents are published: terminal, file, log, Alertmanager, webhooks, Grafana, event stream."""
