"""The nodes that trials run on: a private Ray cluster or one that runs already, shared with other studies."""
