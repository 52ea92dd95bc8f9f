"""One resumable embedding job: request, plan, units, output. It knows no Ray."""
