// What model_tflm.cpp uses of TensorFlow Lite Micro, with a network that gives back its input times two and, as the
// real interpreter may, destroys its input on the way.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tensorflow/lite/schema/schema_generated.h"

enum TfLiteStatus { kTfLiteOk = 0, kTfLiteError = 1 };

struct TfLiteTensor {
  union {
    char *raw;
    float *f;
  } data;
  size_t bytes;
};

namespace tflite {

class MicroOpResolver {};

class MicroInterpreter {
 public:
  MicroInterpreter(const Model *, const MicroOpResolver &, uint8_t *arena, size_t arena_size)
      : arena_(arena), size_(arena_size) {}

  TfLiteStatus AllocateTensors() {
    input_.data.raw = reinterpret_cast<char *>(arena_);
    output_.data.raw = reinterpret_cast<char *>(arena_) + STAND_IN_BYTES;
    input_.bytes = output_.bytes = STAND_IN_BYTES;
    return size_ >= 2 * STAND_IN_BYTES ? kTfLiteOk : kTfLiteError;
  }

  TfLiteStatus Invoke() {
    for (size_t i = 0; i < STAND_IN_BYTES / sizeof(float); ++i) {
      output_.data.f[i] = 2 * input_.data.f[i];
      input_.data.f[i] = -1;
    }
    return kTfLiteOk;
  }

  size_t inputs_size() const { return 1; }
  size_t outputs_size() const { return 1; }
  TfLiteTensor *input(size_t) { return &input_; }
  TfLiteTensor *output(size_t) { return &output_; }
  size_t arena_used_bytes() const { return 2 * STAND_IN_BYTES; }

 private:
  uint8_t *arena_;
  size_t size_;
  TfLiteTensor input_, output_;
};

}  // namespace tflite
