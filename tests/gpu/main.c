/* SPDX-License-Identifier: Apache-2.0 */
#include "probe.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OPTION_LIST = TOOL_STANDARD_OPTION_COUNT,
    OPTION_FACT,
    OPTION_BUILDS,
    OPTION_BINARIES,
    OPTION_PATTERNS,
    OPTION_BYTES,
    OPTION_OUTPUT,
    OPTION_COUNT
};

static const tool_option options_table[OPTION_COUNT] = {
    TOOL_STANDARD_OPTIONS,
    {"list", NULL, "print the names of the facts"},
    {"fact", "NAME", "find out one fact"},
    {"builds", "LIST", "build the configurations of a file, lines of offline_plans"},
    {"binaries", "DIR", "with --builds: write the binaries there"},
    {"patterns", NULL, "measure patterns of reading"},
    {"bytes", "N", "with --patterns: of the buffer; default as much as a GPU's copies take, 1 GiB"},
    {"output", "F", "append the answers to this file, a line of JSON each"},
};

static const tool_program program = {
    .name = "gpu_probe",
    .summary = "Asks a device what tools/gpu-check.sh wants to know of it.",
    .notes = "A question may end the process or hang: ask each in a process of its own, with a limit.",
    .options = options_table,
    .option_count = OPTION_COUNT,
};

tool_exit probe_append(const probe_context *probe, json_t *answer, tool_error *error)
{
    char *const text = answer ? json_dumps(answer, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(answer);
    TOOL_TRY(tool_check_memory(text, "an answer", error));
    /* Several processes append to one file, so each line is a single write. */
    const size_t length = strlen(text);
    const int file = open(probe->output, O_WRONLY | O_CREAT | O_APPEND, 0666);
    text[length] = '\n';
    const bool done = file >= 0 && write(file, text, length + 1) == (ssize_t)(length + 1) && fsync(file) == 0;
    if (file >= 0)
        (void)close(file);
    free(text);
    return done ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "--output '%s': cannot append a line", probe->output);
}

static tool_exit run(const char *const *values, const probe_context *probe, tool_error *error)
{
    if (values[OPTION_FACT])
        return probe_fact(probe, values[OPTION_FACT], error);
    if (values[OPTION_BUILDS])
        return probe_builds(probe, values[OPTION_BUILDS], error);
    return probe_patterns(probe, error);
}

static tool_exit act(const char *const *values, tool_error *error)
{
    static const int questions[] = {OPTION_LIST, OPTION_FACT, OPTION_BUILDS, OPTION_PATTERNS};
    probe_context probe = {.output = values[OPTION_OUTPUT], .folder = values[OPTION_BINARIES]};
    size_t count = 0;
    for (size_t i = 0; i < TOOL_COUNT(questions); i++)
        count += values[questions[i]] != NULL;
    if (count != 1)
        return tool_fail(error, TOOL_BAD_INPUT, "expected one of --list, --fact, --builds, --patterns");
    if (values[OPTION_LIST]) {
        probe_list_facts();
        return tool_flush_stdout(error);
    }
    if (!probe.output)
        return tool_fail(error, TOOL_BAD_INPUT, "expected --output with it");
    TOOL_TRY(tool_parse_integer("bytes", values[OPTION_BYTES], 1 << 16, INT64_MAX, &probe.bytes, error));
    TOOL_TRY(tool_device_open(values[TOOL_OPTION_DEVICE], &probe.device, error));
    const tool_exit status = run(values, &probe, error);
    tool_device_close(&probe.device);
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
