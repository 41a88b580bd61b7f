"""Who answers queries: one file for one engine."""
