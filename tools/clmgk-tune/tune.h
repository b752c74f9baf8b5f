/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-tune: measures a device once.
 *
 *     main.c      what is to be done         device.c    a device's cache, history and processes
 *     options.c   the command line           attention.c all cases of attention, candidate.c, decision.c
 *     programs.c  programs made ahead
 *     manage.c    show, reset, export, import products.c  providers and parameters of matrix products
 *     child.c     a process for candidates   units.c     parameters of products by matrix units
 *     search.c    which parameters to measure next
 *     worker.c    what runs in it            history.c   what was measured, on disk as soon as it is known
 *     product.c   products there             session.c   what attention.c and products.c share
 *                                            report.c    progress and results
 *
 * Candidates run in a process of their own, so that one that hangs or crashes the driver costs a time limit and nothing
 * else. This process never runs a kernel.
 */
#ifndef TUNE_H
#define TUNE_H

#include "cases.h"
#include "clmgk/tuning.h"
#include "output.h"
#include "product.h"

#include <jansson.h>

/* ---- the command line --------------------------------------------------------------------------------------- */

/* Each product is measured with the three ways in which layers hold their matrices: as they are, B transposed (weights
 * [out, in]), A transposed (the weights' gradient). */
#define TUNE_LAYOUTS 3

typedef struct tune_options {
    bench_request request;
    tool_product products[TOOL_MAX_PRODUCTS];
    size_t product_count;
    const char *device;
    bool all_devices;
    double budget_s;
    double candidate_s; /* a candidate that takes longer, compiling included, is given up */
    bool resume, show, reset, json, random;
    const char *export_path, *import_path, *programs_path; /* NULL: not asked for */
} tune_options;

extern const tool_program tune_program;

/* The first argument of the process for candidates; its folder, the device and the arguments of this one follow. */
#define TUNE_WORKER_OPTION "--worker"

tool_exit tune_parse_options(int argc, char **argv, tune_options *options, bool *finished, tool_error *error);

/* ---- show, reset, export, import ----------------------------------------------------------------------------- */

tool_exit tune_show(const tune_options *options, tool_error *error);
tool_exit tune_reset(const tune_options *options, tool_error *error);
tool_exit tune_export(const tune_options *options, tool_error *error);
/* The entries of a device (NULL: of all) in *text (free). */
tool_exit tune_export_text(cl_device_id device, char **text, size_t *length, tool_error *error);
tool_exit tune_import(const tune_options *options, tool_error *error);

/* ---- programs made ahead --------------------------------------------------------------------------------------- */

tool_exit tune_make_programs(const tune_options *options, tool_error *error);

/* ---- the process for candidates -------------------------------------------------------------------------------- */

/* Its main function. `folder` is for the programs that it compiles, `selector` names the device, `argc` and `argv` are
 * the parent's. Jobs come as JSON objects, one a line, on standard input, answers go to standard output (worker.c). */
int tune_worker(const char *folder, const char *selector, int argc, char **argv);

typedef struct tune_child tune_child;

typedef enum tune_reply {
    TUNE_ANSWERED,
    TUNE_DIED, /* the process ended: a crash, most likely the driver's */
    TUNE_HUNG  /* no answer in time: the process was ended */
} tune_reply;

/* Describes the process for one device; it is started with its first job. */
tool_exit tune_child_create(const clmgk_device_info *device, tool_outputs *outputs, const char *folder, int argc,
                            char **argv, tune_child **out, tool_error *error);
void tune_child_destroy(tune_child *child);

/* Sends a job (its reference is taken; NULL is out of memory); its answer has to be received before the next. */
tool_exit tune_child_send(tune_child *child, json_t *job, tool_error *error);

/* Waits for the answer (json_decref; NULL unless ANSWERED). After DIED and HUNG the next job starts a new process. */
tool_exit tune_child_receive(tune_child *child, double limit_ms, tune_reply *reply, json_t **answer, tool_error *error);

/* ---- history ------------------------------------------------------------------------------------------------- */

/* Everything measured on one device, kept beside the tuning cache so that a run that was cut off can go on. */
typedef struct tune_history tune_history;

/* Opens the device's file in the folder of the tuning cache; without `resume` it begins empty. Holds the lock that
 * keeps a second clmgk-tune out. `path` is the folder of clmgk_tuning_get_info. */
tool_exit tune_history_open(const char *path, const clmgk_device_info *device, bool resume, tune_history **out,
                            tool_error *error);
void tune_history_close(tune_history *history);

/* Appends a record (its reference is taken; NULL is out of memory). */
tool_exit tune_history_add(tune_history *history, json_t *record, tool_error *error);

/* An array of what was read when it was opened and added since. */
const json_t *tune_history_records(const tune_history *history);

/* Removes the histories of a device (NULL: of all). */
tool_exit tune_history_remove(const char *path, const clmgk_device_info *device, tool_error *error);

/* ---- results --------------------------------------------------------------------------------------------------- */

typedef enum tune_outcome {
    TUNE_UNMEASURED,    /* the budget was spent before its turn */
    TUNE_REFUSED,       /* the device can't run it: `message` */
    TUNE_DEFAULT,       /* nothing beat the defaults beyond noise */
    TUNE_FASTER,        /* a candidate did: it is in the cache */
    TUNE_KNOWN_DEFAULT, /* as the two before, by an earlier run that this one resumed */
    TUNE_KNOWN_FASTER
} tune_outcome;

typedef struct tune_result {
    const bench_case *item;
    tune_outcome outcome;
    char key[320];
    char engine[16];
    char parameters[512]; /* those that differ from the defaults */
    double default_ms, tuned_ms;
    double ratio; /* tuned / default, of interleaved runs */
    double space; /* legal points of its kernels, of the engines that are compared */
    size_t tried;
    char message[256];
} tune_result;

#define TUNE_MAX_PROVIDERS 8

/* Who multiplies how fast. */
typedef struct tune_product {
    tool_product shape;
    bool measured;
    size_t provider_count;
    struct {
        const char *name;
        double ms;                  /* <= 0: it can't, or failed */
    } provider[TUNE_MAX_PROVIDERS]; /* in the order in which they are preferred without tuning */
    size_t chosen;                  /* of them: the first that can, unless another is faster beyond noise */
    double ratio;                   /* its time / the time of the first that can */
    char parameters[512];           /* of matrix units: the fastest found; "": the defaults */
    size_t tried;                   /* of these */
} tune_product;

/* CLBlast's parameters. */
typedef struct tune_clblast {
    tune_outcome outcome;
    double ratio; /* time with them / time with those in use before: geometric mean over the products */
    size_t tried;
    char parameters[512];
} tune_clblast;

typedef struct tune_counts {
    size_t tried, slow, failed, hung, died, wrong, unconfirmed;
} tune_counts;

/* What was found on a device. */
typedef struct tune_report {
    clmgk_device_info device;
    tune_result *results;
    size_t result_count;
    tune_product products[TUNE_LAYOUTS * TOOL_MAX_PRODUCTS];
    size_t product_count;
    tune_clblast clblast;
    tune_counts counts;
    double spent_s;
    bench_request request; /* of `groups` */
    bench_group *groups;
} tune_report;

/* Goes through all cases. Programs of candidates are put into `folder`, which `outputs` removes. */
tool_exit tune_device(const tune_options *options, int argc, char **argv, const clmgk_device_info *info,
                      tool_outputs *outputs, const char *folder, tune_report *report, tool_error *error);
void tune_report_free(tune_report *report);

void tune_print_report(const tune_report *report, FILE *stream);
json_t *tune_report_json(const tune_report *report);

/* Runs a job on a product (products.c says which) in the process for candidates. */
tool_exit tune_product_job(const tool_device *device, const char *folder, const json_t *job, json_t **answer,
                           tool_error *error);

/* A case in words that tell it from all others: the key of histories. */
void tune_case_key(const bench_case *item, char *key, size_t size);

/* Name of a case for people: "square-64 mgk 4 backward". */
void tune_case_name(const bench_case *item, char *name, size_t size);

#endif
