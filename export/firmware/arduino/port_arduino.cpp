// The board under an Arduino core. Memory figures where Mbed OS provides them.
#include <Arduino.h>

#include "port.h"

#if defined(ARDUINO_ARCH_MBED)
#include <mbed_stats.h>

// From the core's linker script.
extern "C" {
extern uint32_t __etext, __data_start__, __data_end__, __bss_start__, __bss_end__;
}

// Flash before this address holds the boot loader.
#define FLASH_START 0x10000u
#endif

const uint32_t port_tick_hz = 1000000;

void port_write(const char *bytes, size_t count) { Serial.write(reinterpret_cast<const uint8_t *>(bytes), count); }

// micros() has 32 bits: wraps after 71 minutes. Called often enough, as every command and inference does.
uint64_t port_ticks() {
  static uint32_t last = 0;
  static uint64_t wraps = 0;
  const uint32_t now = micros();
  if (now < last) {
    wraps += 1ull << 32;
  }
  last = now;
  return wraps + now;
}

port_memory port_memory_used() {
  port_memory used = {0, 0, 0};
#if defined(ARDUINO_ARCH_MBED)
  const uint32_t data = (uint32_t)((uintptr_t)&__data_end__ - (uintptr_t)&__data_start__);
  used.flash = (uint32_t)((uintptr_t)&__etext - FLASH_START) + data;
  used.static_ram = data + (uint32_t)((uintptr_t)&__bss_end__ - (uintptr_t)&__bss_start__);
  mbed_stats_stack_t stack;  // painted by Mbed OS; the sum over all threads
  mbed_stats_stack_get(&stack);
  used.stack = stack.max_size;
#endif
  return used;
}
