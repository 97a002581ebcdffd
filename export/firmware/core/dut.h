/* The device under test of MLPerf Tiny's runner: commands end in '%', replies in "m-ready". */
#ifndef DUT_H
#define DUT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Prepares the model and greets the host. */
void dut_start(void);

/* Takes a byte from the host; runs the command that it completes. */
void dut_receive(char byte);

#ifdef __cplusplus
}
#endif

#endif
