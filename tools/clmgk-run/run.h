/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-run: attention on the user's own arrays. In order: arguments.c, problem.c, execute.c, check.c, report.c (with
 * state.c).
 */
#ifndef RUN_H
#define RUN_H

#include "opencl.h"
#include "problem.h"

#include "reference/reference.h"

/* ---- arguments.c: the command line -------------------------------------------------------------------------- */

/* Points into itself: not to be copied. */
typedef struct run_arguments {
    tool_problem_arguments problem;
    clmgk_engine engine;
    bool check;
    bool json;
    int64_t repeat; /* 0: not timed */
    const char *device;
    const char *parameters;
    const char *backward_parameters;
    const char *state_out; /* as given; NULL: not given */
    char state_out_files[2][TOOL_MAX_PATH];
} run_arguments;

extern const tool_program run_program;

/* *finished: --help or --version was answered. */
tool_exit run_parse(int argc, char **argv, run_arguments *arguments, bool *finished, tool_error *error);

/* ---- problem.c: what the files hold, and the outputs' shapes -------------------------------------------------- */

/* tool_problem_close takes `problem` also if this fails. */
tool_exit run_problem_open(const run_arguments *arguments, tool_problem *problem, tool_error *error);

/* ---- execute.c: on the device ------------------------------------------------------------------------------- */

typedef struct run_execution {
    tool_device device;
    clmgk_plan *plan;
    clmgk_plan_info info;
    cl_mem memory[CLMGK_ARRAYS]; /* NULL: not there */
    tool_spread forward_ms;      /* with repeat > 0 */
    tool_spread backward_ms;     /* with repeat > 0 and gradients */
    double forward_flops;
    double backward_flops;
} run_execution;

/* Plans, loads and runs. Call run_close on `execution` even if this fails. */
tool_exit run_execute(const run_arguments *arguments, const tool_problem *problem, run_execution *execution,
                      tool_error *error);
/* Times `repeat` runs of each pass that is timed; they write what run_execute wrote. */
tool_exit run_time(const tool_problem *problem, int64_t repeat, run_execution *execution, tool_error *error);
void run_close(run_execution *execution);

/* Makes the first `bytes` of an array readable by the host, until run_unmap. */
tool_exit run_map(const run_execution *execution, clmgk_array array, size_t bytes, const void **elements,
                  tool_error *error);
void run_unmap(const run_execution *execution, clmgk_array array, const void *elements);

/* ---- check.c: against double precision ---------------------------------------------------------------------- */

/* Elements of an output, and the index of the first in its file. */
typedef struct run_found {
    int64_t count;
    int64_t first[NPY_MAX_AXES];
} run_found;

typedef struct run_check_result {
    bool ok;
    char message[256];        /* the first thing that is wrong; empty if ok */
    int64_t lost_rows;        /* judged apart: reference/reference.h */
    int64_t reads_outside;    /* of captured arrays: they take the nearest element */
    bool checked[TOOL_FILES]; /* outputs */
    clmgk_ref_error worst[TOOL_FILES];
    double max_abs[TOOL_FILES]; /* largest exact value */
    int axes[TOOL_FILES];
    run_found nan[TOOL_FILES];
    run_found infinite[TOOL_FILES]; /* that the reference has not */
} run_check_result;

tool_exit run_check(const tool_problem *problem, const run_execution *execution, run_check_result *result,
                    tool_error *error);

/* ---- state.c: a state's numbers as files have them -------------------------------------------------------------- */

/* Whether the array is C or z of the state that the forward pass writes. */
bool run_is_new_state(clmgk_array array);

/* Its true values, e^m times what the device holds, for free(). Refuses what does not fit float32. */
tool_exit run_true_state(const tool_problem *problem, const run_execution *execution, clmgk_array array, float **values,
                         tool_error *error);

/* ---- report.c: files and words ------------------------------------------------------------------------------ */

/* Announces the output files, which may not be inputs. */
typedef struct run_outputs {
    tool_outputs *files;
    size_t place[TOOL_FILES]; /* in `files`, of those given */
    size_t number_place[CLMGK_MAX_NUMBERS];
} run_outputs;
tool_exit run_announce(const run_arguments *arguments, run_outputs *outputs, tool_error *error);

tool_exit run_write(const run_arguments *arguments, const tool_problem *problem, const run_execution *execution,
                    run_outputs *outputs, tool_error *error);

/* `check` is NULL without --check. */
tool_exit run_report(const run_arguments *arguments, const tool_problem *problem, const run_execution *execution,
                     const run_check_result *check, tool_error *error);

#endif
