"""The worker process of one replica, beside the handle the daemon keeps on it."""
