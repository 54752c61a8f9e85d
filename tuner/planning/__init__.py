"""What can be said of a search before anything has run: predicted peaks, predicted times, the predicted front."""
