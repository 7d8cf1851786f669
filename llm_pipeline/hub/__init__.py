"""The model hub: pin a revision, choose its files, download and verify them."""
