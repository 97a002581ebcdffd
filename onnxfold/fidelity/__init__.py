"""How close two models are: on held-out inputs, on given ones, beside labels."""
