/* SPDX-License-Identifier: Apache-2.0 */
/* clmgk-run: attention on the user's own arrays. In order: arguments.c, problem.c, execute.c, check.c, report.c. */
#ifndef RUN_H
#define RUN_H

#include "npy.h"
#include "opencl.h"
#include "output.h"
#include "tool.h"

#include "reference/reference.h"

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
    bool tokens_first; /* --layout bnhd */
    bool check;
    bool json;
    int64_t repeat; /* 0: not timed */
    const char *device;
    const char *parameters;
    /* Files and lists of numbers, as given; NULL: not given. */
    const char *q, *k, *v;
    const char *prior, *variance, *shift;
    const char *lengths, *lengths_q;
    const char *out, *lse;
} run_arguments;

extern const tool_program run_program;

/* *finished: --help or --version was answered. */
tool_exit run_parse(int argc, char **argv, run_arguments *arguments, bool *finished, tool_error *error);

/* ---- problem.c: what the files hold ------------------------------------------------------------------------- */

/* A problem that is known to be right. Q, K, V stay in their files until there is memory on the device for them. */
typedef struct run_problem {
    clmgk_attention_desc desc; /* resolved */
    npy_file q, k, v;
    float *prior, *variance, *shift; /* NULL: not given, or (variance) one number in desc */
    int32_t *lengths, *lengths_q;
} run_problem;

/* run_problem_close takes `problem` also if this fails. */
tool_exit run_problem_open(const run_arguments *arguments, run_problem *problem, tool_error *error);
void run_problem_close(run_problem *problem);

/* Elements of each array; L's, O's, ... as in clmgk_attention_args. */
size_t run_count_o(const clmgk_attention_desc *desc);
size_t run_count_lse(const clmgk_attention_desc *desc);
size_t run_count_prior(const clmgk_attention_desc *desc);
size_t run_count_variance(const clmgk_attention_desc *desc);
size_t run_count_shift(const clmgk_attention_desc *desc);

/* ---- execute.c: on the device ------------------------------------------------------------------------------- */

typedef enum run_array {
    RUN_Q,
    RUN_K,
    RUN_V,
    RUN_O,
    RUN_LSE,
    RUN_PRIOR,
    RUN_VARIANCE,
    RUN_SHIFT,
    RUN_LENGTHS,
    RUN_LENGTHS_Q,
    RUN_WORKSPACE,
    RUN_ARRAY_COUNT
} run_array;

typedef struct run_execution {
    tool_device device;
    clmgk_plan *plan;
    clmgk_plan_info info;
    cl_mem memory[RUN_ARRAY_COUNT]; /* NULL: not there */
    tool_spread time_ms;            /* with repeat > 0 */
    double flops;
} run_execution;

/* Plans, loads, runs and times. run_close takes `execution` also if this fails. */
tool_exit run_execute(const run_arguments *arguments, run_problem *problem, run_execution *execution,
                      tool_error *error);
void run_close(run_execution *execution);

/* Makes the first `bytes` of an array readable by the host, until run_unmap. */
tool_exit run_map(const run_execution *execution, run_array array, size_t bytes, const void **elements,
                  tool_error *error);
void run_unmap(const run_execution *execution, run_array array, const void *elements);

/* ---- check.c: against double precision ---------------------------------------------------------------------- */

typedef struct run_check_result {
    clmgk_ref_bound bound_o;
    clmgk_ref_bound bound_lse;
    clmgk_ref_verdict verdict;
} run_check_result;

tool_exit run_check(const run_problem *problem, const run_execution *execution, run_check_result *result,
                    tool_error *error);

/* ---- report.c: files and words ------------------------------------------------------------------------------ */

/* Announces the output files, which may not be inputs. */
typedef struct run_outputs {
    tool_outputs *files;
    size_t out, lse; /* their places in `files`, where given */
} run_outputs;
tool_exit run_announce(const run_arguments *arguments, run_outputs *outputs, tool_error *error);

tool_exit run_write(const run_arguments *arguments, const run_problem *problem, const run_execution *execution,
                    run_outputs *outputs, tool_error *error);

/* `check` is NULL without --check. */
tool_exit run_report(const run_arguments *arguments, const run_problem *problem, const run_execution *execution,
                     const run_check_result *check, tool_error *error);

#endif
