"""The only place that touches protobuf or onnx-graphsurgeon: load, save, view, edit."""
