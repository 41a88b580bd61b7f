"""Who proposes tokens: one file for one drafter."""
