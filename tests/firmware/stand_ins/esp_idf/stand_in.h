/* What port_esp_idf.c uses of ESP-IDF: declarations only, to compile it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int esp_err_t;
#define ESP_OK 0
#define ESP_ERROR_CHECK(call) ((void)(call))
#define EXT_RAM_BSS_ATTR __attribute__((section(".ext_ram.bss")))
#define CONFIG_ESP_MAIN_TASK_STACK_SIZE 16384
#define portMAX_DELAY 0xffffffffu
#define UART_NUM_0 0

enum { UART_DATA_8_BITS = 3, UART_PARITY_DISABLE = 0, UART_STOP_BITS_1 = 1, UART_HW_FLOWCTRL_DISABLE = 0 };
typedef struct {
    int baud_rate;
    int data_bits;
    int parity;
    int stop_bits;
    int flow_ctrl;
} uart_config_t;
typedef struct {
    uint32_t address;
    uint32_t size;
} esp_partition_t;
typedef struct {
    uint32_t offset;
    uint32_t size;
} esp_partition_pos_t;
typedef struct {
    uint32_t image_len;
} esp_image_metadata_t;

esp_err_t uart_driver_install(int port, int receive, int transmit, int queue_size, void *queue, int flags);
esp_err_t uart_param_config(int port, const uart_config_t *settings);
int uart_write_bytes(int port, const void *bytes, size_t count);
int uart_read_bytes(int port, void *bytes, uint32_t count, uint32_t ticks);
int64_t esp_timer_get_time(void);
const esp_partition_t *esp_ota_get_running_partition(void);
esp_err_t esp_image_get_metadata(const esp_partition_pos_t *place, esp_image_metadata_t *image);
unsigned uxTaskGetStackHighWaterMark(void *task);
void app_main(void);
