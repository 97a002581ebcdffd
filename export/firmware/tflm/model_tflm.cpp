// The model in TensorFlow Lite Micro.
#include "model_tflm_library.h"

#include <cstdint>
#include <cstring>

#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

#include "model_data.h"
#include "model_operators.h"
#include "model_run.h"

alignas(16) unsigned char model_input[MODEL_INPUT_BYTES];
alignas(16) unsigned char model_output[MODEL_OUTPUT_BYTES];

namespace {

alignas(16) MODEL_ARENA_ATTRIBUTE uint8_t arena[MODEL_ARENA_BYTES];
tflite::MicroInterpreter *interpreter = nullptr;

bool has_size(const TfLiteTensor *tensor, const model_tensor *tensors, size_t count, size_t place, size_t total) {
  const size_t end = place + 1 < count ? tensors[place + 1].offset : total;
  return tensor->bytes == end - tensors[place].offset;
}

}  // namespace

const char *model_init(void) {
  const tflite::Model *model = tflite::GetModel(model_data);
  if (model->version() != TFLITE_SCHEMA_VERSION) {
    return "the library has another schema version than the model";
  }
  static OperatorResolver resolver;
  if (!add_operators(resolver)) {
    return "the library lacks an operator of the model";
  }
  static tflite::MicroInterpreter instance(model, resolver, arena, MODEL_ARENA_BYTES);
  if (instance.AllocateTensors() != kTfLiteOk) {
    return "AllocateTensors() failed: raise MODEL_ARENA_BYTES in model_config.h";
  }
  if (instance.inputs_size() != MODEL_INPUTS || instance.outputs_size() != MODEL_OUTPUTS) {
    return "the model has other inputs or outputs than model_tensors.c";
  }
  for (size_t i = 0; i < MODEL_INPUTS; ++i) {
    if (!has_size(instance.input(i), model_inputs, MODEL_INPUTS, i, MODEL_INPUT_BYTES)) {
      return "an input has another size than in model_tensors.c";
    }
  }
  for (size_t i = 0; i < MODEL_OUTPUTS; ++i) {
    if (!has_size(instance.output(i), model_outputs, MODEL_OUTPUTS, i, MODEL_OUTPUT_BYTES)) {
      return "an output has another size than in model_tensors.c";
    }
  }
  interpreter = &instance;
  return nullptr;
}

// The interpreter reuses the memory of its inputs: they are copied in every time.
const char *model_invoke(void) {
  for (size_t i = 0; i < MODEL_INPUTS; ++i) {
    TfLiteTensor *tensor = interpreter->input(i);
    std::memcpy(tensor->data.raw, model_input + model_inputs[i].offset, tensor->bytes);
  }
  if (interpreter->Invoke() != kTfLiteOk) {
    return "Invoke() failed";
  }
  for (size_t i = 0; i < MODEL_OUTPUTS; ++i) {
    const TfLiteTensor *tensor = interpreter->output(i);
    std::memcpy(model_output + model_outputs[i].offset, tensor->data.raw, tensor->bytes);
  }
  return nullptr;
}

uint32_t model_activation_bytes(void) { return interpreter == nullptr ? 0 : interpreter->arena_used_bytes(); }
