"""Public fakes for tests and the playground."""
