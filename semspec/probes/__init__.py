"""Semantic-probability probes: from chains of thought to a trained predictor (methods 1.1)."""
