"""The same network in the forms that exporters write."""
