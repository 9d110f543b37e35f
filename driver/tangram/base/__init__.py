"""What every layer stands on: errors, time, settings, logs and metrics."""
