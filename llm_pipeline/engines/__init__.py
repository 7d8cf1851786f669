"""Engine builders: from a checkpoint to something a server can load, one adapter a runtime."""
