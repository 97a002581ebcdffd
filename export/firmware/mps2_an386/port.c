/* The protocol on UART0 of mps2-an386, with time from SysTick. */
#include "port.h"

#include "board.h"

#define TICKS_PER_WRAP 0x1000000u /* SysTick has 24 bits */

extern uint32_t _data_start[], _bss_end[];

const uint32_t port_tick_hz = CLOCK_HZ;

static volatile uint32_t wraps;

void systick_handler(void);

void systick_handler(void) {
    ++wraps;
}

uint64_t port_ticks(void) {
    uint32_t before;
    uint32_t value;
    uint32_t pending;
    __asm__ volatile("cpsid i" ::: "memory");
    value = SYSTICK->value;
    pending = *ICSR & ICSR_SYSTICK_PENDING;
    if (pending != 0) { /* wrapped, and not counted yet: read the value after the wrap */
        value = SYSTICK->value;
    }
    before = wraps;
    __asm__ volatile("cpsie i" ::: "memory");
    return (uint64_t)(before + (pending != 0)) * TICKS_PER_WRAP + (TICKS_PER_WRAP - 1 - value);
}

void port_write(const char *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        while ((UART0->state & UART_TX_FULL) != 0) {
        }
        UART0->data = (unsigned char)bytes[i];
    }
}

/* Sleeps until a byte comes. Interrupts are masked between test and wfi, which a pending one ends all the same. */
static char receive(void) {
    for (;;) {
        __asm__ volatile("cpsid i" ::: "memory");
        const uint32_t state = UART0->state;
        if ((state & UART_RX_FULL) == 0) {
            __asm__ volatile("wfi");
        }
        __asm__ volatile("cpsie i" ::: "memory");
        if ((state & UART_RX_FULL) != 0) {
            return (char)UART0->data;
        }
    }
}

port_memory port_memory_used(void) {
    const uint32_t *deepest = _stack_limit;
    while (deepest < _stack_top && *deepest == STACK_PAINT) {
        ++deepest;
    }
    const port_memory used = {
        .flash = (uint32_t)((uintptr_t)_flash_used_end - (uintptr_t)_flash_start +
                            ((uintptr_t)_weights_end - (uintptr_t)_weights_start)),
        .static_ram = (uint32_t)((uintptr_t)_bss_end - (uintptr_t)_data_start),
        .stack = (uint32_t)((uintptr_t)_stack_top - (uintptr_t)deepest),
    };
    return used;
}

int main(void) {
    SYSTICK->load = TICKS_PER_WRAP - 1;
    SYSTICK->value = 0;
    SYSTICK->ctrl = 7;
    UART0->bauddiv = CLOCK_HZ / 115200;
    UART0->ctrl = 1u | 2u | 8u;
    *NVIC_ISER0 = 1u; /* UART0 receive */
    dut_start();
    for (;;) {
        dut_receive(receive());
    }
}
