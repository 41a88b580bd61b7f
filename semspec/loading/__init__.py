"""Load a configuration: bind its plugins, load its models, and open sessions for problems."""
