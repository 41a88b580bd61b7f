"""What is trained once and used by many: folders of safetensors, JSON and a card; never pickles."""
