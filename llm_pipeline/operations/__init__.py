"""What people do to what serves, whoever asks: look at it, start it, stop it."""
