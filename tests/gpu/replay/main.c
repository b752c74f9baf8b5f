/* SPDX-License-Identifier: Apache-2.0 */
#include "recording.h"

#include <stdio.h>
#include <stdlib.h>

enum { OPTION_RECORDING = TOOL_STANDARD_OPTION_COUNT, OPTION_REPEATS, OPTION_REGISTERS, OPTION_DESCRIBE, OPTION_COUNT };

static const tool_option options_table[OPTION_COUNT] = {
    TOOL_STANDARD_OPTIONS,
    {"recording", "F", "a launch that record_layer wrote (required)"},
    {"repeats", "N", "launches, the fastest of which is told; default 5"},
    {"registers", "N", "the most of a work-item, which OpenCL has as an option of the program; default: no limit"},
    {"describe", NULL, "do not launch it; say what it is"},
};

static const tool_program program = {
    .name = "gpu_replay",
    .summary = "Launches a recorded OpenCL kernel through CUDA's driver, where NVIDIA's profilers see it.",
    .notes = "Prints a line of JSON. The device is CUDA's first.",
    .options = options_table,
    .option_count = OPTION_COUNT,
};

static json_t *describe(const replay_recording *recording)
{
    size_t buffer_bytes = 0, buffers = 0;
    for (size_t i = 0; i < recording->count; i++) {
        buffers += recording->arguments[i].is_buffer;
        buffer_bytes += recording->arguments[i].is_buffer ? recording->arguments[i].size : 0;
    }
    return json_pack("{s:s, s:[i,i,i], s:[i,i,i], s:I, s:I, s:I, s:I}", "kernel", recording->kernel, "groups",
                     (int)recording->groups[0], (int)recording->groups[1], (int)recording->groups[2], "items",
                     (int)recording->items[0], (int)recording->items[1], (int)recording->items[2], "arguments",
                     (json_int_t)recording->count, "buffers", (json_int_t)buffers, "buffer_bytes",
                     (json_int_t)buffer_bytes, "program_bytes", (json_int_t)recording->program_size);
}

static tool_exit launch(replay_recording *recording, int64_t repeats, int64_t registers, json_t *answer,
                        tool_error *error)
{
    replay_result found = {.ms = 0};
    TOOL_TRY(replay_adapt(recording, error));
    TOOL_TRY(replay_launch(recording, repeats, registers, &found, error));
    const double groups = (double)recording->groups[0] * recording->groups[1] * recording->groups[2];
    const double at_once = (double)found.resident * found.multiprocessors;
    json_t *const more =
        json_pack("{s:f, s:i, s:i, s:i, s:i, s:i, s:f}", "ms", found.ms, "registers", found.registers, "stack_bytes",
                  found.stack_bytes, "local_bytes", found.local_bytes, "resident", found.resident, "multiprocessors",
                  found.multiprocessors, "waves", at_once > 0 ? groups / at_once : 0.0);
    const bool joined = more && json_object_update(answer, more) == 0;
    json_decref(more);
    return tool_check_memory(joined ? answer : NULL, "an answer", error);
}

static tool_exit act(const char *const *values, tool_error *error)
{
    replay_recording recording = {.count = 0};
    int64_t repeats = 5, registers = 0;
    json_t *answer = NULL;
    tool_exit status = TOOL_DONE;
    if (!values[OPTION_RECORDING])
        return tool_fail(error, TOOL_BAD_INPUT, "expected --recording");
    TOOL_TRY(tool_parse_integer("repeats", values[OPTION_REPEATS], 1, 1000, &repeats, error));
    TOOL_TRY(tool_parse_integer("registers", values[OPTION_REGISTERS], 16, 255, &registers, error));
    TOOL_TRY_GOTO(status, replay_read(values[OPTION_RECORDING], &recording, error), done);
    answer = describe(&recording);
    TOOL_TRY_GOTO(status, tool_check_memory(answer, "an answer", error), done);
    if (!values[OPTION_DESCRIBE])
        TOOL_TRY_GOTO(status, launch(&recording, repeats, registers, answer, error), done);
    char *const text = json_dumps(answer, JSON_COMPACT | JSON_REAL_PRECISION(6));
    TOOL_TRY_GOTO(status, tool_check_memory(text, "an answer", error), done);
    (void)puts(text);
    free(text);
    status = tool_flush_stdout(error);
done:
    json_decref(answer);
    replay_close(&recording);
    return status;
}

int main(int argc, char **argv)
{
    const char *values[OPTION_COUNT];
    tool_error error = {.message = ""};
    bool finished = false;
    tool_exit status = tool_parse_options(&program, argc, argv, values, &finished, &error);
    if (status == TOOL_DONE && !finished)
        status = act(values, &error);
    return tool_report(&program, status, &error);
}
