/* The protocol on standard input and output, to test it where it is built. */
#include <stdio.h>
#include <time.h>

#include "port.h"

const uint32_t port_tick_hz = 1000000;

void port_write(const char *bytes, size_t count) {
    fwrite(bytes, 1, count, stdout);
    fflush(stdout);
}

uint64_t port_ticks(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

port_memory port_memory_used(void) {
    const port_memory used = {.flash = 0, .static_ram = 1234, .stack = 0};
    return used;
}

int main(void) {
    dut_start();
    for (int byte = getchar(); byte != EOF; byte = getchar()) {
        dut_receive((char)byte);
    }
    return 0;
}
