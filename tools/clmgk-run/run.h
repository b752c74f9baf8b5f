/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-run: attention on the user's own arrays. In order: arguments.c, problem.c (with tensors.c, mixing.c,
 * parameters.c and input.c), execute.c, check.c, report.c.
 */
#ifndef RUN_H
#define RUN_H

#include "npy.h"
#include "opencl.h"
#include "output.h"
#include "tool.h"
#include "work.h"

#include "reference/reference.h"

/* ---- the arrays of a call: one option each, but for the workspace ------------------------------------------- */

typedef enum run_array {
    RUN_Q,
    RUN_K,
    RUN_V,
    RUN_GRAD_O,
    RUN_STREAMED, /* how many inputs go from their files to the device without a copy on the host */
    RUN_PRIOR = RUN_STREAMED,
    RUN_VARIANCE,
    RUN_SHIFT,
    RUN_LENGTHS,
    RUN_LENGTHS_Q,
    RUN_OFFSETS,
    RUN_OFFSETS_K,
    RUN_BIAS,
    RUN_SLOPES,
    RUN_SINKS,
    RUN_MIX,
    RUN_MIX_WEIGHT,
    RUN_MIX_OFFSET,
    RUN_NOISE,
    RUN_GRAD_LSE,
    RUN_INPUTS, /* how many */
    RUN_O = RUN_INPUTS,
    RUN_LSE,
    RUN_GRAD_Q, /* from here in the order of clmgk_gradient */
    RUN_GRAD_K,
    RUN_GRAD_V,
    RUN_GRAD_PRIOR,
    RUN_GRAD_VARIANCE,
    RUN_GRAD_SHIFT,
    RUN_GRAD_BIAS,
    RUN_GRAD_SINKS,
    RUN_GRAD_MIX,
    RUN_GRAD_MIX_WEIGHT,
    RUN_GRAD_MIX_OFFSET,
    RUN_GRAD_NOISE,
    RUN_RESPONSIBILITIES, /* from here in the order of clmgk_statistic */
    RUN_COUNTS,
    RUN_NEW_PRIOR,
    RUN_NLL,
    RUN_FILES, /* how many have an option */
    RUN_WORKSPACE = RUN_FILES,
    RUN_ARRAYS
} run_array;

/* How many outputs each of the other passes has. */
enum { RUN_GRADIENTS = RUN_RESPONSIBILITIES - RUN_GRAD_Q, RUN_STATISTICS = RUN_FILES - RUN_RESPONSIBILITIES };

/* The option of an array, without dashes. */
const char *run_option(run_array array);

/* ---- arguments.c: the command line -------------------------------------------------------------------------- */

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

/* A problem that is known to be right. */
typedef struct run_problem {
    clmgk_attention_desc desc; /* resolved */
    npy_file file[RUN_INPUTS]; /* closed when read; those that are streamed are read by run_execute */
    run_slot slot[RUN_FILES];
    const char *heads_option; /* the option that gave H */
    uint64_t seed;
} run_problem;

/* run_problem_close takes `problem` also if this fails. */
tool_exit run_problem_open(const run_arguments *arguments, run_problem *problem, tool_error *error);
void run_problem_close(run_problem *problem);

/* Type of an array's elements on the device; not of lengths and offsets, which are int32_t. */
clmgk_dtype run_dtype(const clmgk_attention_desc *desc, run_array array);
size_t run_element_size(const clmgk_attention_desc *desc, run_array array);

/* ---- execute.c: on the device ------------------------------------------------------------------------------- */

typedef struct run_execution {
    tool_device device;
    clmgk_plan *plan;
    clmgk_plan_info info;
    cl_mem memory[RUN_ARRAYS]; /* NULL: not there */
    tool_spread forward_ms;    /* with repeat > 0 */
    tool_spread backward_ms;   /* with repeat > 0 and gradients */
    double forward_flops;
    double backward_flops;
} run_execution;

/* Plans, loads, runs and times. run_close takes `execution` also if this fails. */
tool_exit run_execute(const run_arguments *arguments, const run_problem *problem, run_execution *execution,
                      tool_error *error);
void run_close(run_execution *execution);

/* Makes the first `bytes` of an array readable by the host, until run_unmap. */
tool_exit run_map(const run_execution *execution, run_array array, size_t bytes, const void **elements,
                  tool_error *error);
void run_unmap(const run_execution *execution, run_array array, const void *elements);

/* ---- check.c: against double precision ---------------------------------------------------------------------- */

typedef struct run_check_result {
    bool ok;
    char message[256];       /* the first thing that is wrong; empty if ok */
    bool checked[RUN_FILES]; /* outputs */
    clmgk_ref_error worst[RUN_FILES];
    double max_abs[RUN_FILES]; /* largest exact value */
} run_check_result;

tool_exit run_check(const run_problem *problem, const run_execution *execution, run_check_result *result,
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
