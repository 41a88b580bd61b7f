"""Probes of semantic probability: their features, their network, and the clustering of labels."""
