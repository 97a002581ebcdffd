// Answers the protocol of MLPerf Tiny's runner on the USB serial port; what it does is in src/.
#include "src/dut.h"
#include "src/port_arduino.h"

void setup() {
  port_begin();
  dut_start();
}

void loop() {
  int byte = port_receive();
  if (byte >= 0) {
    dut_receive((char)byte);
  }
}
