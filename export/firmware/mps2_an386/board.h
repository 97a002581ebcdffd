/* Registers of Arm's mps2-an386 (application note DAI0386, CMSDK technical reference manual) that are used here. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

typedef struct {
    volatile uint32_t data;
    volatile uint32_t state; /* bit 0: transmitter full, bit 1: received */
    volatile uint32_t ctrl;  /* bit 0: transmit, bit 1: receive, bit 3: receive interrupt */
    volatile uint32_t intclear;
    volatile uint32_t bauddiv;
} cmsdk_uart;

#define UART0 ((cmsdk_uart *)0x40004000u)
#define UART_TX_FULL 1u
#define UART_RX_FULL 2u
#define UART_RX_INTERRUPT 2u

typedef struct {
    volatile uint32_t ctrl; /* bit 0: enable, bit 1: interrupt, bit 2: processor clock */
    volatile uint32_t load;
    volatile uint32_t value; /* counts down */
} systick;

#define SYSTICK ((systick *)0xe000e010u)
#define NVIC_ISER0 ((volatile uint32_t *)0xe000e100u)
#define ICSR ((volatile uint32_t *)0xe000ed04u)
#define ICSR_SYSTICK_PENDING (1u << 26)
#define CPACR ((volatile uint32_t *)0xe000ed88u)

#define CLOCK_HZ 25000000u

/* From the linker script. */
extern uint32_t _stack_limit[], _stack_top[], _flash_start[], _flash_used_end[], _weights_start[], _weights_end[];

#define STACK_PAINT 0xa5c3f00du

#endif
