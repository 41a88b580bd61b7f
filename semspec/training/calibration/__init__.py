"""Measurements that calibrations and audits are made of."""
