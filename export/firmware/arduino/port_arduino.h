// The serial port of an Arduino board.
#ifndef PORT_ARDUINO_H
#define PORT_ARDUINO_H

void port_begin();

// Returns the next byte, -1 if there is none.
int port_receive();

#endif
