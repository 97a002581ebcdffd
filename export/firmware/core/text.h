/* Text for the host, without printf: the same digits on every C library, and no heap. */
#ifndef TEXT_H
#define TEXT_H

#include <stdint.h>

void text_put(const char *text);
void text_unsigned(uint64_t value);
void text_signed(int64_t value);
void text_hex(uint8_t value);

/* Nine significant digits ("-1.23456789e-05"), enough to give back every float; "nan", "inf", "-inf". */
void text_float(float value);

#endif
