"""Model repositories by engine builder: what each one's server needs around the engine."""
