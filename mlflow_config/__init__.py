"""Where results are kept: MLflow's names, settings, recorder and server."""
