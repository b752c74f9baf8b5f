/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-tune: measures a device once.
 *
 *     options.c   the command line             tune.c     a device's session: time, candidates, the proof
 *     manage.c    show, reset, export, import  search.c   which parameters to measure next
 *     programs.c  programs made ahead          cases.c    the cases, and what differs between their kinds
 *     report.c    results                      worker.c   a candidate, in a process of its own
 *     history.c   what was measured, on disk   child.c    such a process, seen from this one
 *
 * Each candidate runs in a process of its own, so that one that hangs or crashes the driver costs a time limit and
 * nothing else. This process never runs a kernel.
 */
#ifndef TUNE_H
#define TUNE_H

#include "cases.h"
#include "output.h"
#include "product.h"
#include "search.h"

#include <jansson.h>

typedef struct tune_options {
    bench_request request;
    tool_product products[TOOL_MAX_PRODUCTS];
    size_t product_count;
    const char *device;
    bool all_devices;
    double budget_s;
    double candidate_s; /* a candidate that takes longer, compiling included, is given up */
    bool resume, show, reset, json;
    const char *export_path, *import_path, *programs_path; /* NULL: not asked for */
} tune_options;

extern const tool_program tune_program;

tool_exit tune_parse_options(int argc, char **argv, tune_options *options, bool *finished, tool_error *error);

/* Actions that measure nothing. */
tool_exit tune_show(const tune_options *options, tool_error *error);
tool_exit tune_reset(const tune_options *options, tool_error *error);
tool_exit tune_export(const tune_options *options, tool_error *error);
tool_exit tune_import(const tune_options *options, tool_error *error);
tool_exit tune_make_programs(const tune_options *options, tool_error *error);

/* ---- cases and their results --------------------------------------------------------------------------------- */

typedef enum tune_kind {
    TUNE_ATTENTION, /* a pass; its spaces are engines */
    TUNE_PRODUCT,   /* a shape in a layout; its spaces are providers */
    TUNE_CLBLAST,   /* CLBlast's parameters, one set for all products of a type */
    TUNE_KINDS
} tune_kind;

typedef enum tune_outcome {
    TUNE_UNMEASURED, /* the budget was spent before its turn */
    TUNE_REFUSED,    /* the device can't run it: `message` */
    TUNE_DEFAULT,    /* nothing beat the defaults beyond noise */
    TUNE_FASTER      /* a candidate did: it is in the cache */
} tune_outcome;

struct tune_case;

/* Cases with the same spaces: what is learnt of one says something about the others. */
typedef struct tune_family {
    const struct tune_case *first;
    tune_space spaces[TUNE_MOST_SPACES];
    const char *table[TUNE_MOST_SPACES]; /* of the parameters; NULL: there are none */
    bool far[TUNE_MOST_SPACES];          /* an engine that was much slower than the default one */
    size_t count;
} tune_family;

typedef struct tune_case {
    tune_kind kind;
    size_t group, index;    /* its place in the request; of a product: its shape and its layout */
    const bench_case *item; /* of attention */
    tool_product product;   /* of a product */
    char name[128];         /* for people */
    json_t *what;           /* what tells it from all others, in the history and the report */
    tune_family *family;
    clmgk_context *library; /* for questions about the device */
    tune_search search;
    tune_candidate defaults[TUNE_MOST_SPACES];
    bool known[TUNE_MOST_SPACES]; /* of the defaults */
    size_t usual;                 /* the space that is used without tuning */
    bool begun, finished;         /* by this run; nothing is left to do */
    tune_outcome outcome;
    char choice[32], parameters[512]; /* those that differ from the defaults */
    double default_ms;
    double ratio; /* tuned / default, of runs in turn */
    size_t tried;
    char message[256];
} tune_case;

/* Candidates: all, and those that lost otherwise than by a complete measurement. */
#define TUNE_COUNTS(X)                                                                                                 \
    X(TRIED, "tried")                                                                                                  \
    X(SLOW, "stopped_early")                                                                                           \
    X(FAILED, "failed")                                                                                                \
    X(HUNG, "hung")                                                                                                    \
    X(CRASHED, "crashed")                                                                                              \
    X(WRONG, "wrong")                                                                                                  \
    X(UNCONFIRMED, "not_confirmed")
#define TUNE_COUNT_NUMBER(name, text) TUNE_##name,
typedef enum tune_count { TUNE_COUNTS(TUNE_COUNT_NUMBER) TUNE_COUNT_COUNT } tune_count;

/* What was found on a device. */
typedef struct tune_report {
    clmgk_device_info device;
    tune_case *cases; /* in the order of their turns, kind by kind */
    size_t count;
    tune_family *families;
    size_t counts[TUNE_COUNT_COUNT];
    double spent_s;
    bench_request request; /* of `groups` */
    bench_group *groups;
} tune_report;

/* Lists all cases of report->device. On failure `report` holds what tune_report_free takes. */
tool_exit tune_make_cases(const tune_options *options, clmgk_context *library, tune_report *report, tool_error *error);

/* "name=value,..." of the values that differ from `defaults` (NULL: all). */
typedef struct tune_text {
    char text[512];
} tune_text;
tune_text tune_point_text(const tune_space *space, const int32_t *values, const int32_t *defaults);

/* The candidate that "choice" and "parameters" of an object name; false: none of this case. */
bool tune_read(const tune_case *c, const json_t *object, tune_candidate *found);

/* CLBlast does not tell its own parameters: the search begins at these. */
void tune_set_start(tune_case *c, clmgk_device_class device_class);

/* Whether a space, with its defaults, may be compared with the usual one. */
bool tune_may_try(const tune_case *c, size_t space);

/* The fastest candidates of the nearest cases become this one's starts. */
void tune_take_starts(const tune_report *report, tune_case *c);

/* Stores the result in the cache. */
tool_exit tune_store(const tune_case *c, tool_error *error);

/* Its result. */
void tune_print_case(const tune_case *c, FILE *stream);

void tune_print_report(const tune_report *report);
json_t *tune_report_json(const tune_report *report);
void tune_report_free(tune_report *report);

/* ---- a candidate's process ------------------------------------------------------------------------------------- */

/* The first argument of such a process; its folder, the device, the job and the arguments of this one follow. */
#define TUNE_WORKER_OPTION "--worker"

/* Its main function. The answer, a JSON object, goes to standard output as a line. */
int tune_worker(int argc, char **argv);

/* What all of them share. */
typedef struct tune_setup {
    tool_outputs *outputs; /* ends them on signals */
    const char *folder;    /* for the programs that they compile */
    char selector[32];     /* of the device */
    int argc;
    char **argv;
} tune_setup;

typedef struct tune_child {
    pid_t process; /* 0: none */
    int from;
    double end_ms; /* of its time */
} tune_child;

/* Starts a process for a job, whose reference is taken (NULL is out of memory). */
tool_exit tune_child_start(const tune_setup *setup, json_t *job, double limit_ms, tune_child *child, tool_error *error);

/* Waits for its end, or ends it: *answer (json_decref) is NULL if it died, most likely in the driver, or `hung`. */
tool_exit tune_child_finish(const tune_setup *setup, tune_child *child, bool *hung, json_t **answer, tool_error *error);

/* ---- history ------------------------------------------------------------------------------------------------- */

/* Everything measured on one device with this driver, kept beside the tuning cache so that a run that was cut off can
 * go on: a file of JSON objects, one a line. Without `resume` it begins empty, else *records (json_decref) has what was
 * there. The file is locked, which keeps a second clmgk-tune out. */
tool_exit tune_history_open(const char *folder, const clmgk_device_info *device, bool resume, FILE **file,
                            json_t **records, tool_error *error);

/* Appends a record (its reference is taken; NULL is out of memory). */
tool_exit tune_history_add(FILE *file, json_t *record, tool_error *error);

/* Removes it. */
tool_exit tune_history_remove(const char *folder, const clmgk_device_info *device, tool_error *error);

/* ---- a device --------------------------------------------------------------------------------------------------- */

/* Goes through all cases of report->device. */
tool_exit tune_device(const tune_options *options, tune_setup *setup, tune_report *report, tool_error *error);

#endif
