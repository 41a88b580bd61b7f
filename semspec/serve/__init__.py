"""An OpenAI endpoint in front of the solver: requests that come when they come, thinking that streams by steps."""
