/* ESP-EYE: the protocol on UART0, which the board's USB socket carries. */
#include <stdint.h>

#include "driver/uart.h"
#include "esp_image_format.h"
#include "esp_ota_ops.h"
#include "esp_timer.h"
#include "freertos/FreeRTOS.h"
#include "freertos/task.h"
#include "sdkconfig.h"

#include "port.h"

#define PORT_UART UART_NUM_0
#define RECEIVE_BYTES 1024

/* From ESP-IDF's linker script. */
extern uint32_t _data_start, _data_end, _bss_start, _bss_end;

const uint32_t port_tick_hz = 1000000;

void port_write(const char *bytes, size_t count) {
    uart_write_bytes(PORT_UART, bytes, count);
}

uint64_t port_ticks(void) {
    return (uint64_t)esp_timer_get_time();
}

static uint32_t between(const uint32_t *start, const uint32_t *end) {
    return (uint32_t)((uintptr_t)end - (uintptr_t)start);
}

/* Length of the application in flash, 0 where it cannot be read. */
static uint32_t image_bytes(void) {
    const esp_partition_t *partition = esp_ota_get_running_partition();
    const esp_partition_pos_t place = {.offset = partition->address, .size = partition->size};
    esp_image_metadata_t image;
    return esp_image_get_metadata(&place, &image) == ESP_OK ? image.image_len : 0;
}

/* Variables in internal RAM; `idf.py size` has the whole picture. */
port_memory port_memory_used(void) {
    const port_memory used = {
        .flash = image_bytes(),
        .static_ram = between(&_data_start, &_data_end) + between(&_bss_start, &_bss_end),
        .stack = CONFIG_ESP_MAIN_TASK_STACK_SIZE - (uint32_t)uxTaskGetStackHighWaterMark(NULL),
    };
    return used;
}

void app_main(void) {
    const uart_config_t settings = {
        .baud_rate = 115200,
        .data_bits = UART_DATA_8_BITS,
        .parity = UART_PARITY_DISABLE,
        .stop_bits = UART_STOP_BITS_1,
        .flow_ctrl = UART_HW_FLOWCTRL_DISABLE,
    };
    ESP_ERROR_CHECK(uart_driver_install(PORT_UART, RECEIVE_BYTES, 0, 0, NULL, 0));
    ESP_ERROR_CHECK(uart_param_config(PORT_UART, &settings));
    dut_start();
    for (;;) {
        uint8_t byte;
        if (uart_read_bytes(PORT_UART, &byte, 1, portMAX_DELAY) == 1) {
            dut_receive((char)byte);
        }
    }
}
