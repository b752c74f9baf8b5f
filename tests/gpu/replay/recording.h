/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recorded launch of a kernel, and the text of its program. record_layer writes two files: NAME.bin is the program as
 * the OpenCL driver gives it, on NVIDIA's PTX; NAME.rec is
 *
 *     clmgk recording 1
 *     KERNEL
 *     GROUPS GROUPS GROUPS
 *     ITEMS ITEMS ITEMS                work-items of a work-group
 *     value|buffer|local SIZE          for each argument, followed by so many bytes; by none for local memory
 */
#ifndef CLMGK_TEST_GPU_RECORDING_H
#define CLMGK_TEST_GPU_RECORDING_H

#include "tool.h"

typedef struct replay_argument {
    bool is_buffer;
    size_t size;
    unsigned char *bytes;
} replay_argument;

enum { REPLAY_ARGUMENTS = 32, REPLAY_NAME = 128 };

typedef struct replay_recording {
    char kernel[REPLAY_NAME];
    unsigned groups[3], items[3];
    size_t count;
    replay_argument arguments[REPLAY_ARGUMENTS];
    char *program; /* text, zero-terminated */
    size_t program_size;
} replay_recording;

/* Reads FILE.rec and FILE.bin beside it. To be closed also after a failure. */
tool_exit replay_read(const char *path, replay_recording *recording, tool_error *error);
void replay_close(replay_recording *recording);

/* Turns PTX for OpenCL's driver into PTX for CUDA's: textures become CUDA's, and the registers of a launch's offset 0.
 */
tool_exit replay_adapt(replay_recording *recording, tool_error *error);

/* What a launch through CUDA showed. */
typedef struct replay_result {
    double ms; /* the least */
    int registers, stack_bytes, local_bytes, resident, multiprocessors;
} replay_result;

/* Launches the kernel `repeats` times. NO_DEVICE, with the reason: there is no CUDA driver, or it refuses. */
tool_exit replay_launch(const replay_recording *recording, int64_t repeats, int64_t registers, replay_result *result,
                        tool_error *error);

#endif
