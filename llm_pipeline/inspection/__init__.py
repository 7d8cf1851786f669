"""Looking into a store: what there is, one thing of it, whether it is whole, and how two things differ."""
