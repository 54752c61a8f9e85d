"""Studies whose driver runs on the cluster, as a job of Ray: submitted, watched and stopped from elsewhere."""
