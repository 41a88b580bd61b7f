"""Many runs, or one run in parts: experiments, sweeps, and the launchers that carry them out."""
