/* MLPerf Tiny's device under test, as its runner expects it (https://github.com/mlcommons/tiny, benchmark/api):
 * name, profile, timestamp, help, db load N, db HEX, db print, infer N W, results. Lines that begin with "x-" are
 * additions; the runner passes over them. Commands end in '%', replies in "m-ready". */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "model_run.h"
#include "port.h"

#define COMMAND_BYTES 80
#define BYTES_PER_LINE 8
#define DEFAULT_WARM_UP 10

static char command[COMMAND_BYTES + 1];
static size_t command_length;
static bool command_too_long;
static char *rest; /* of the command, not yet read */

static size_t expected; /* bytes announced by db load */
static size_t loaded;   /* bytes received since */
static const char *model_problem;
static uint64_t last_ticks; /* of the last infer */

static void put_line(const char *text) {
    text_put(text);
    text_put("\r\n");
}

static void put_number(const char *label, uint64_t value) {
    text_put(label);
    text_unsigned(value);
    text_put("\r\n");
}

static void put_error(const char *what, const char *detail) {
    text_put("e-[");
    text_put(what);
    text_put(detail);
    put_line("]");
}

static void put_size_error(const char *what, size_t bytes, const char *bound, size_t bound_bytes) {
    text_put(what);
    text_unsigned(bytes);
    text_put(bound);
    text_unsigned(bound_bytes);
    put_line("]");
}

static void put_timestamp(uint64_t ticks) {
    put_number("m-lap-us-", ticks / port_tick_hz * 1000000u + ticks % port_tick_hz * 1000000u / port_tick_hz);
}

/* Cuts the next word off the command; NULL if there is none. strtok would take newlib's heap. */
static const char *next_word(void) {
    const char *word = rest += strspn(rest, " ");
    rest += strcspn(rest, " ");
    if (*rest != '\0') {
        *rest++ = '\0';
    }
    return *word == '\0' ? NULL : word;
}

/* The value of a decimal number without sign; false where the text is none, or above 32 bits. */
static bool parse_number(const char *text, uint32_t *value) {
    uint64_t parsed = 0;
    const char *digit = text;
    for (; *digit >= '0' && *digit <= '9' && parsed <= UINT32_MAX; ++digit) {
        parsed = parsed * 10 + (uint64_t)(*digit - '0');
    }
    *value = (uint32_t)parsed;
    return digit != text && *digit == '\0' && parsed <= UINT32_MAX;
}

static int hex_digit(char digit) {
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    if (digit >= 'a' && digit <= 'f') {
        return digit - 'a' + 10;
    }
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

static void load_begin(const char *size) {
    uint32_t bytes;
    if (size == NULL) {
        put_error("Command 'db load' requires the # of bytes", "");
    } else if (!parse_number(size, &bytes) || bytes == 0) {
        put_error("Command 'db load' must be >0 bytes", "");
    } else if (bytes > MODEL_INPUT_BYTES) {
        put_size_error("e-[Supplied buffer size ", bytes, " exceeds maximum of ", MODEL_INPUT_BYTES);
    } else {
        expected = bytes;
        loaded = 0;
        text_put("m-[Expecting ");
        text_unsigned(bytes);
        put_line(" bytes]");
    }
}

static void load_bytes(const char *digits) {
    const size_t count = strlen(digits);
    if (count % 2 != 0) {
        put_error("Insufficient number of hex digits", "");
        return;
    }
    if (loaded == expected) {
        put_error("No bytes are expected: use 'db load' first", "");
        return;
    }
    for (size_t i = 0; i < count; i += 2) {
        const int high = hex_digit(digits[i]);
        const int low = hex_digit(digits[i + 1]);
        if (high < 0 || low < 0) {
            const char pair[3] = {digits[i], digits[i + 1], '\0'};
            text_put("e-[Invalid hex digit '");
            text_put(pair);
            put_line("']");
            return;
        }
        model_input[loaded++] = (unsigned char)(high * 16 + low);
        if (loaded == expected) {
            put_line("m-load-done");
            return;
        }
    }
}

static void load_print(void) {
    for (size_t i = 0; i < loaded; ++i) {
        text_put(i % BYTES_PER_LINE == 0 ? "m-buffer-" : "-");
        text_hex(model_input[i]);
        if ((i + 1) % BYTES_PER_LINE == 0 || i + 1 == loaded) {
            text_put("\r\n");
        }
    }
}

static void run_db(void) {
    const char *what = next_word();
    if (what == NULL) {
        put_error("Command 'db' requires a subcommand", "");
    } else if (strcmp(what, "load") == 0) {
        load_begin(next_word());
    } else if (strcmp(what, "print") == 0) {
        load_print();
    } else {
        load_bytes(what);
    }
}

static void put_element(const model_tensor *tensor, uint32_t index) {
    static const size_t bytes[] = {4, 1, 1, 4, 8, 1};
    union {
        float as_float;
        int8_t as_int8;
        uint8_t as_uint8;
        int32_t as_int32;
        int64_t as_int64;
    } value;
    memcpy(&value, model_output + tensor->offset + index * bytes[tensor->type], bytes[tensor->type]);
    switch (tensor->type) {
        case MODEL_FLOAT32: text_float(value.as_float); break;
        case MODEL_INT8: text_signed(value.as_int8); break;
        case MODEL_INT32: text_signed(value.as_int32); break;
        case MODEL_INT64: text_signed(value.as_int64); break;
        case MODEL_UINT8:
        case MODEL_BOOL: text_unsigned(value.as_uint8); break;
    }
}

static void put_results(void) {
    text_put("m-results-[");
    for (size_t i = 0; i < MODEL_OUTPUTS; ++i) {
        for (uint32_t j = 0; j < model_outputs[i].count; ++j) {
            if (i + j != 0) {
                text_put(",");
            }
            put_element(&model_outputs[i], j);
        }
    }
    put_line("]");
}

static const char *infer_times(uint32_t count) {
    const char *problem = NULL;
    while (count-- > 0 && problem == NULL) {
        problem = model_invoke();
    }
    return problem;
}

/* Both time stamps are printed after the last inference, so that sending the first is not measured. */
static void infer(uint32_t count, uint32_t warm_up) {
    put_number("m-warmup-start-", warm_up);
    const char *problem = infer_times(warm_up);
    put_line("m-warmup-done");
    put_number("m-infer-start-", count);
#ifdef MODEL_OP_TICKS
    memset(op_ticks, 0, op_count * sizeof op_ticks[0]);
#endif
    const uint64_t start = port_ticks();
    if (problem == NULL) {
        problem = infer_times(count);
    }
    const uint64_t end = port_ticks();
    if (problem != NULL) {
        put_error("Inference failed: ", problem);
        return;
    }
    last_ticks = end - start;
    put_timestamp(start);
    put_timestamp(end);
    put_line("m-infer-done");
    put_number("x-ticks-", last_ticks);
    put_results();
}

static void run_infer(void) {
    uint32_t count = 1;
    uint32_t warm_up = DEFAULT_WARM_UP;
    const char *first = next_word();
    const char *second = next_word();
    if (first != NULL && (!parse_number(first, &count) || count == 0)) {
        put_error("Inference iterations must be >0", "");
    } else if (second != NULL && !parse_number(second, &warm_up)) {
        put_error("Inference warmup must be >=0", "");
    } else if (model_problem != NULL) {
        put_error("Model cannot be used: ", model_problem);
    } else if (loaded != MODEL_INPUT_BYTES) {
        put_size_error("e-[Input has ", loaded, " bytes, expected ", MODEL_INPUT_BYTES);
    } else {
        infer(count, warm_up);
    }
}

static void put_tensors(const char *label, const model_tensor *tensors, size_t count) {
    static const char *const types[] = {"float32", "int8", "uint8", "int32", "int64", "bool"};
    for (size_t i = 0; i < count; ++i) {
        text_put(label);
        text_put(types[tensors[i].type]);
        text_put(",");
        text_put(tensors[i].shape);
        text_put(",");
        text_put(tensors[i].axes);
        text_put(",");
        text_put(tensors[i].name);
        put_line("]");
    }
}

static void run_signature(void) {
    put_tensors("x-input-[", model_inputs, MODEL_INPUTS);
    put_tensors("x-output-[", model_outputs, MODEL_OUTPUTS);
    put_line("x-runtime-[" MODEL_RUNTIME "]");
    put_number("x-tick-hz-", port_tick_hz);
}

static void run_memory(void) {
    const port_memory used = port_memory_used();
    put_number("x-mem-activations-", model_activation_bytes());
    if (used.static_ram != 0) {
        put_number("x-mem-static-", used.static_ram);
    }
    if (used.stack != 0) {
        put_number("x-mem-stack-", used.stack);
    }
    if (used.flash != 0) {
        put_number("x-mem-flash-", used.flash);
    }
}

#ifdef MODEL_OP_TICKS
static void run_operators(void) {
    for (uint32_t i = 0; i < op_count; ++i) {
        text_put("x-op-[");
        text_unsigned(i);
        text_put(",");
        text_put(op_types[i]);
        text_put(",");
        text_unsigned(op_ticks[i]);
        put_line("]");
    }
}
#endif

static void run_name(void) {
    put_line("m-name-dut-[" DEVICE_NAME "]");
}

static void run_profile(void) {
    put_line("m-profile-[ULPMark for tinyML Firmware V0.0.1]");
    put_line("m-model-[" MODEL_NAME "]");
}

static void run_timestamp(void) {
    put_timestamp(port_ticks());
}

static void run_help(void);

static const struct {
    const char *name;
    void (*run)(void);
    const char *help;
} commands[] = {
    {"help", run_help, "help         : Print this information"},
    {"name", run_name, "name         : Print the name of the device"},
    {"profile", run_profile, "profile      : Print protocol and model"},
    {"timestamp", run_timestamp, "timestamp    : Print the time in microseconds"},
    {"db", run_db,
     "db SUBCMD    : Manipulate the input buffer\r\n"
     "  load N     : Announce N bytes\r\n"
     "  db HH[HH]* : Load 8-bit hex byte(s) until N bytes\r\n"
     "  print      : Print the bytes loaded as hex"},
    {"infer", run_infer, "infer N [W=10]: Execute N inferences after W warmup loops"},
    {"results", put_results, "results      : Print the outputs of the last inference"},
    {"signature", run_signature, "signature    : Print inputs, outputs and runtime"},
    {"memory", run_memory, "memory       : Print the memory used"},
#ifdef MODEL_OP_TICKS
    {"operators", run_operators, "operators    : Print the ticks of each operator in the last infer"},
#endif
};

static void run_help(void) {
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i) {
        put_line(commands[i].help);
    }
}

static void run_command(void) {
    rest = command;
    const char *name = next_word();
    if (command_too_long) {
        put_error("Command too long", "");
    } else if (name != NULL) {
        size_t i = 0;
        while (i < sizeof commands / sizeof commands[0] && strcmp(name, commands[i].name) != 0) {
            ++i;
        }
        if (i < sizeof commands / sizeof commands[0]) {
            commands[i].run();
        } else {
            put_error("Unknown command: ", name);
        }
    }
    put_line("m-ready");
}

void dut_start(void) {
    put_line("m-timestamp-mode-performance");
    put_timestamp(port_ticks());
    model_problem = model_init();
    if (model_problem != NULL) {
        put_error("Model cannot be used: ", model_problem);
    }
    put_line("m-init-done");
    put_line("m-ready");
}

void dut_receive(char byte) {
    if (byte == '%') {
        command[command_length] = '\0';
        run_command();
        command_length = 0;
        command_too_long = false;
    } else if (byte == '\r' || byte == '\n') {
        return; /* from a terminal */
    } else if (command_length < COMMAND_BYTES) {
        command[command_length++] = byte;
    } else {
        command_too_long = true;
    }
}
