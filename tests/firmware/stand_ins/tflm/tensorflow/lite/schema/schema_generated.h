#pragma once
#define TFLITE_SCHEMA_VERSION 3

namespace tflite {
class Model {
 public:
  unsigned version() const { return 3; }
};

// Only ever asked for its version.
inline const Model *GetModel(const void *) {
  static const Model model;
  return &model;
}
}  // namespace tflite
