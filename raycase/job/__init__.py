"""A resumable job that embeds or scores a corpus: request, plan, units, output. It knows no Ray."""
