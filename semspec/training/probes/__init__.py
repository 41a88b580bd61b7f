"""Train semantic-probability probes: contexts, samples, clusters, labels, training."""
