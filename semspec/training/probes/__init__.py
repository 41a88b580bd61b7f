"""Train semantic-probability probes in four stages: contexts, samples, clusters, training."""
