// What port_arduino.cpp uses of an Arduino core, on standard input and output.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>

struct StandInSerial {
  void begin(unsigned long) {}
  explicit operator bool() const { return true; }
  int read() { return std::getchar(); }
  size_t write(const uint8_t *bytes, size_t count) {
    const size_t written = std::fwrite(bytes, 1, count, stdout);
    std::fflush(stdout);
    return written;
  }
};

static StandInSerial Serial;

inline unsigned long micros() { return 1234567; }
