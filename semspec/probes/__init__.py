"""Probes of semantic probability: how their data are sampled and labelled, how they are trained."""
