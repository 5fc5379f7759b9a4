"""Model providers: the protocol of models, and the models that are shipped."""
