#pragma once
#include "tensorflow/lite/micro/micro_interpreter.h"

namespace tflite {
template <unsigned int tOpCount>
class MicroMutableOpResolver : public MicroOpResolver {
 public:
  TfLiteStatus AddConv2D() { return Add(); }
  TfLiteStatus AddFullyConnected() { return Add(); }
  TfLiteStatus AddMaxPool2D() { return Add(); }

 private:
  TfLiteStatus Add() { return count_++ < tOpCount ? kTfLiteOk : kTfLiteError; }
  unsigned int count_ = 0;
};
}  // namespace tflite
