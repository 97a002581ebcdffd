/* Reset and exception handlers of the Cortex-M4F on mps2-an386. */
#include <stdint.h>

#include "board.h"

extern uint32_t _data_load[], _data_start[], _data_end[], _bss_start[], _bss_end[];

int main(void);
void reset_handler(void);
void systick_handler(void);

/* A fault stops the firmware; the host's time-out tells. */
static void stop(void) {
    for (;;) {
        __asm__ volatile("wfi");
    }
}

/* The UART's interrupt only ends a wfi; the byte is read by port.c. */
static void uart_handler(void) {
    UART0->intclear = UART_RX_INTERRUPT;
}

/* Fills the stack below the caller, so that what has been used can be told later. */
static void paint_stack(void) {
    uint32_t *top;
    __asm__ volatile("mov %0, sp" : "=r"(top));
    for (uint32_t *word = _stack_limit; word < top; ++word) {
        *word = STACK_PAINT;
    }
}

__attribute__((noreturn)) void reset_handler(void) {
    paint_stack();
    for (uint32_t *to = _data_start, *from = _data_load; to < _data_end;) {
        *to++ = *from++;
    }
    for (uint32_t *to = _bss_start; to < _bss_end;) {
        *to++ = 0;
    }
    *CPACR |= 0xfu << 20; /* full access to the FPU */
    __asm__ volatile("dsb\nisb");
    main();
    for (;;) {
        stop();
    }
}

/* System exceptions 1 to 15, then UART0's receive interrupt. */
__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void))(uintptr_t)_stack_top,
    reset_handler,
    stop, /* NMI */
    stop, /* HardFault */
    stop, /* MemManage */
    stop, /* BusFault */
    stop, /* UsageFault */
    0,
    0,
    0,
    0,
    stop, /* SVCall */
    stop, /* DebugMonitor */
    0,
    stop, /* PendSV */
    systick_handler,
    uart_handler,
};
