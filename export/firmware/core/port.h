/* What a board provides. */
#ifndef PORT_H
#define PORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sends bytes to the host. */
void port_write(const char *bytes, size_t count);

/* A clock that never goes back, and its frequency in Hz. */
uint64_t port_ticks(void);
extern const uint32_t port_tick_hz;

/* Bytes; 0 where the board cannot tell. */
typedef struct {
    uint32_t flash;      /* code, constants and initial values */
    uint32_t static_ram; /* variables */
    uint32_t stack;      /* high-water mark */
} port_memory;

port_memory port_memory_used(void);

#ifdef __cplusplus
}
#endif

#endif
