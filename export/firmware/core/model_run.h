/* A model behind one header: implemented by generated C (model_generated.c) and by TensorFlow Lite Micro
 * (model_tflm.cpp). */
#ifndef MODEL_RUN_H
#define MODEL_RUN_H

#include <stddef.h>
#include <stdint.h>

#include "model_config.h"
#include "port.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { MODEL_FLOAT32, MODEL_INT8, MODEL_UINT8, MODEL_INT32, MODEL_INT64, MODEL_BOOL } model_type;

/* An input or output. `shape` is the tensor's in memory ("1x32x32x1"); `axes` says which axis of the ONNX model each
 * of its axes is ("0 2 3 1": channels last). */
typedef struct {
    model_type type;
    uint32_t count;
    uint32_t offset; /* bytes in model_input or model_output */
    const char *shape;
    const char *axes;
    const char *name;
} model_tensor;

extern const model_tensor model_inputs[MODEL_INPUTS];
extern const model_tensor model_outputs[MODEL_OUTPUTS];

/* All inputs, and all outputs, one after the other. An inference leaves the inputs as they were. */
extern unsigned char model_input[MODEL_INPUT_BYTES];
extern unsigned char model_output[MODEL_OUTPUT_BYTES];

/* Prepares the model; returns NULL, or what is wrong. */
const char *model_init(void);

/* Runs one inference; returns NULL, or what is wrong. */
const char *model_invoke(void);

/* Bytes that activations take. */
uint32_t model_activation_bytes(void);

/* Ticks per node of generated C, the number of nodes, and the operator of each: with -DMODEL_OP_TICKS. */
#ifdef MODEL_OP_TICKS
extern uint64_t op_ticks[];
extern const uint32_t op_count;
extern const char *const op_types[];

#define MODEL_OP(index, call)                            \
    do {                                                 \
        const uint64_t op_start = port_ticks();          \
        call;                                            \
        op_ticks[index] += port_ticks() - op_start;      \
    } while (0)
#else
#define MODEL_OP(index, call) call
#endif

#ifdef __cplusplus
}
#endif

#endif
