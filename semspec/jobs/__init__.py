"""Many runs, or one run in parts: experiments, sweeps, and their launchers."""
