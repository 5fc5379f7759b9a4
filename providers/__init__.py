"""Model providers: what turnwise asks of a model, and the models it brings along."""
