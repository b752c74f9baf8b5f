/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-run: attention on the user's own arrays. In order: arguments.c, problem.c (with tensors.c, parameters.c
 * and input.c), execute.c, check.c, report.c (with state.c).
 */
#ifndef RUN_H
#define RUN_H

#include "npy.h"
#include "opencl.h"
#include "output.h"
#include "tool.h"
#include "work.h"

#include "reference/reference.h"

/* ---- arrays: those of clmgk/arrays.h, in its order; before RUN_FILES each has an option ------------------------ */

#define RUN_FILES CLMGK_ARRAY_PARTS_O

/* The option that gives an array, without dashes; its name in results, which tells apart the arrays of one option. */
const char *run_option(clmgk_array array);
const char *run_label(clmgk_array array);

/* Whether the option takes a list of numbers, too. */
bool run_takes_numbers(clmgk_array array);

/* Outputs are O, L, gradients, statistics, and what the linear family's forward pass writes; inputs the other arrays.
 */
bool run_is_output(clmgk_array array);

/* Q, K, V and dO go from their files to the device without a copy on the host. */
bool run_is_streamed(clmgk_array array);

/* ---- arguments.c: the command line -------------------------------------------------------------------------- */

#define RUN_MAX_PATH 4096 /* of the files of a state */

/* Points into itself: not to be copied. */
typedef struct run_arguments {
    clmgk_variant variant;
    clmgk_score score;
    clmgk_estep estep;
    clmgk_alignment alignment;
    clmgk_engine engine;
    clmgk_dtype dtype; /* where has_dtype */
    bool has_dtype;
    bool causal;
    bool has_window;
    bool tokens_first; /* --layout bnhd */
    bool check;
    bool json;
    bool shared_noise;
    int64_t heads; /* 0: not given */
    int64_t window[2];
    double softcap; /* 0: none */
    double dropout;
    uint64_t seed;
    int64_t repeat; /* 0: not timed */
    const char *device;
    const char *parameters;
    const char *backward_parameters;
    const char *file[RUN_FILES]; /* or a list of numbers, as given; NULL: not given */
    clmgk_feature feature;
    int64_t feature_order; /* 0: not given */
    double guard;
    const char *state_out; /* as given; NULL: not given */
    char state_in_files[2][RUN_MAX_PATH], state_out_files[2][RUN_MAX_PATH];
} run_arguments;

extern const tool_program run_program;

/* *finished: --help or --version was answered. */
tool_exit run_parse(int argc, char **argv, run_arguments *arguments, bool *finished, tool_error *error);

/* ---- problem.c: what the files hold ------------------------------------------------------------------------- */

/* One array: its shape, in the file's order of axes, and what the host holds of it. */
typedef struct run_slot {
    bool used; /* the call has it */
    int axes;
    int64_t shape[NPY_MAX_AXES];
    size_t count; /* of elements */
    void *host;   /* of inputs that are not streamed: float or int32_t, for free() */
} run_slot;

/* The size that a letter stands for, and the option that gave it; NULL: not known. */
typedef struct run_size {
    int64_t value;
    const char *source;
} run_size;

/* A problem that is known to be right. */
typedef struct run_problem {
    clmgk_attention_desc desc; /* resolved */
    npy_file file[RUN_FILES];  /* of inputs; closed when read, those that are streamed by run_execute */
    run_slot slot[RUN_FILES];
    run_size size[26]; /* by the letters of clmgk_shape */
    uint64_t seed;
} run_problem;

/* run_problem_close takes `problem` also if this fails. */
tool_exit run_problem_open(const run_arguments *arguments, run_problem *problem, tool_error *error);
void run_problem_close(run_problem *problem);

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

/* Plans, loads, runs and times. run_close takes `execution` also if this fails. */
tool_exit run_execute(const run_arguments *arguments, const run_problem *problem, run_execution *execution,
                      tool_error *error);
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
    char message[256];       /* the first thing that is wrong; empty if ok */
    bool checked[RUN_FILES]; /* outputs */
    clmgk_ref_error worst[RUN_FILES];
    double max_abs[RUN_FILES]; /* largest exact value */
    int axes[RUN_FILES];
    run_found nan[RUN_FILES];
    run_found infinite[RUN_FILES]; /* that the reference has not */
} run_check_result;

tool_exit run_check(const run_problem *problem, const run_execution *execution, run_check_result *result,
                    tool_error *error);

/* ---- state.c: a state's numbers as files have them -------------------------------------------------------------- */

/* Whether the array is C or z of the state that the forward pass writes. */
bool run_is_new_state(clmgk_array array);

/* Its true values, e^m times what the device holds, for free(). Refuses what does not fit float32. */
tool_exit run_true_state(const run_problem *problem, const run_execution *execution, clmgk_array array, float **values,
                         tool_error *error);

/* ---- report.c: files and words ------------------------------------------------------------------------------ */

/* Announces the output files, which may not be inputs. */
typedef struct run_outputs {
    tool_outputs *files;
    size_t place[RUN_FILES]; /* in `files`, of those given */
} run_outputs;
tool_exit run_announce(const run_arguments *arguments, run_outputs *outputs, tool_error *error);

tool_exit run_write(const run_arguments *arguments, const run_problem *problem, const run_execution *execution,
                    run_outputs *outputs, tool_error *error);

/* `check` is NULL without --check. */
tool_exit run_report(const run_arguments *arguments, const run_problem *problem, const run_execution *execution,
                     const run_check_result *check, tool_error *error);

#endif
