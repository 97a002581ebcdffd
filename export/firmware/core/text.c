#include <string.h>

#include "port.h"

#define DIGITS 9

void text_put(const char *text) {
    port_write(text, strlen(text));
}

void text_unsigned(uint64_t value) {
    char digits[20];
    size_t first = sizeof digits;
    do {
        digits[--first] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    port_write(digits + first, sizeof digits - first);
}

void text_signed(int64_t value) {
    if (value < 0) {
        text_put("-");
    }
    text_unsigned(value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void text_hex(uint8_t value) {
    static const char digits[] = "0123456789abcdef";
    const char pair[2] = {digits[value >> 4], digits[value & 15]};
    port_write(pair, sizeof pair);
}

/* Nine digits of a positive number as an integer, and the exponent of the first one. In double: a float times a
 * power of ten keeps 15 digits. */
static uint32_t scaled(double value, int *exponent) {
    *exponent = 0;
    while (value >= 10.0) {
        value /= 10.0;
        ++*exponent;
    }
    while (value < 1.0) {
        value *= 10.0;
        --*exponent;
    }
    uint32_t digits = (uint32_t)(value * 1e8 + 0.5);
    if (digits >= 1000000000u) { /* 9.999999996 is rounded up to ten digits */
        digits /= 10;
        ++*exponent;
    }
    return digits;
}

void text_float(float value) {
    if (value != value) {
        text_put("nan");
        return;
    }
    if (value < 0.0f) {
        text_put("-");
        value = -value;
    }
    if (value > 3.4028235e38f) {
        text_put("inf");
        return;
    }
    char text[] = "0.00000000e+00";
    if (value > 0.0f) {
        int exponent;
        uint32_t digits = scaled((double)value, &exponent);
        for (int i = DIGITS - 1; i >= 0; --i) {
            text[i == 0 ? 0 : i + 1] = (char)('0' + digits % 10);
            digits /= 10;
        }
        const int magnitude = exponent < 0 ? -exponent : exponent;
        text[11] = exponent < 0 ? '-' : '+';
        text[12] = (char)('0' + magnitude / 10);
        text[13] = (char)('0' + magnitude % 10);
    }
    text_put(text);
}
