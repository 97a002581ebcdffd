// Answers the protocol of MLPerf Tiny's runner on the USB serial port; what it does is in src/.
#include "src/port.h"

void setup() {
  Serial.begin(115200);
  while (!Serial) {
  }
  dut_start();
}

void loop() {
  int byte = Serial.read();
  if (byte >= 0) {
    dut_receive((char)byte);
  }
}
