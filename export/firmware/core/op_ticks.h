/* Ticks per node of generated C. Compiled in with -DMODEL_OP_TICKS, nothing otherwise. */
#ifndef OP_TICKS_H
#define OP_TICKS_H

#include <stdint.h>

#ifdef MODEL_OP_TICKS
#include "port.h"

extern uint64_t op_ticks[];

#define MODEL_OP(index, call)                            \
    do {                                                 \
        const uint64_t op_start = port_ticks();          \
        call;                                            \
        op_ticks[index] += port_ticks() - op_start;      \
    } while (0)

/* Number of nodes, and the operator of each. */
extern const uint32_t op_count;
extern const char *const op_types[];
#else
#define MODEL_OP(index, call) call
#endif

#endif
