/* What a board provides, and what it drives with it. */
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

/* Prepares the model and greets the host. */
void dut_start(void);

/* Takes a byte from the host; runs the command that it completes. */
void dut_receive(char byte);

/* Text for the host, without printf: the same digits on every C library, and no heap. A float has nine significant
 * digits ("-1.23456789e-05"), enough to give it back; "nan", "inf", "-inf". */
void text_put(const char *text);
void text_unsigned(uint64_t value);
void text_signed(int64_t value);
void text_hex(uint8_t value);
void text_float(float value);

#ifdef __cplusplus
}
#endif

#endif
