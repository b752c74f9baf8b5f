/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-tune: measures a device once.
 *
 *     main.c      what is to be done           tune.c     a device's session: time, candidates, the proof
 *     options.c   the command line             search.c   which parameters to measure next
 *     manage.c    show, reset, export, import  cases.c    the cases, and what differs between their kinds
 *     programs.c  programs made ahead          worker.c   a candidate, in a process of its own
 *     report.c    results                      child.c    such a process, seen from this one
 *                                              history.c  what was measured, on disk as soon as it is known
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

/* The cache's entries of a device (NULL: of all) in *text (free). */
tool_exit tune_export_text(cl_device_id device, char **text, size_t *length, tool_error *error);

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
    size_t bound[TUNE_MOST_SPACES];      /* so many parameters are that table's, which has constraints */
    size_t count;
    bool far[TUNE_MOST_SPACES]; /* an engine that was much slower than the default one */
} tune_family;

typedef struct tune_case {
    tune_kind kind;
    size_t group, index;    /* its place in the request; of a product: its shape and its layout */
    const bench_case *item; /* of attention */
    tool_product product;   /* of a product */
    char key[640];          /* in the history: words that tell it from all others, and the device's state */
    char name[128];         /* for people */
    tune_family *family;
    clmgk_context *library; /* for questions about the device */
    tune_place place;
    size_t usual;         /* the space that is used without tuning */
    bool begun, finished; /* by this run; nothing is left to do */
    int calls;            /* a repetition */
    bool event_clock;
    double end_ms, kill_ms; /* no candidate begins, none goes on */
    bool fair;              /* the time for it is long enough for a result */
    tune_outcome outcome;
    char choice[32], parameters[512]; /* those that differ from the defaults */
    double default_ms, tuned_ms;
    double ratio; /* tuned / default, of runs in turn */
    size_t tried;
    char message[256];
} tune_case;

/* What was found on a device. */
typedef struct tune_report {
    clmgk_device_info device;
    tune_case *cases; /* in the order of their turns, kind by kind */
    size_t count;
    tune_family *families;
    size_t family_count;
    tune_measured measured;
    struct {
        size_t tried, slow, failed, hung, died, wrong, unconfirmed;
    } counts;
    double spent_s;
    bench_request request; /* of `groups` */
    bench_group *groups;
} tune_report;

/* Lists all cases of report->device. On failure `report` holds what tune_report_free takes. */
tool_exit tune_make_cases(const tune_options *options, clmgk_context *library, tune_report *report, tool_error *error);

/* "name=value,..." of the first `count` values, of those that differ from `defaults` (NULL: all). */
typedef struct tune_text {
    char text[512];
} tune_text;
tune_text tune_point_text(const tune_space *space, size_t count, const int32_t *values, const int32_t *defaults);

/* The candidate that "choice" and "parameters" of an object name; false: none of this case. */
bool tune_read(const tune_case *c, const json_t *object, tune_candidate *found);

/* Sets the choice that is used without tuning, and its values; CLBlast's own are not known: the search begins
 * elsewhere.
 */
bool tune_take_usual(tune_case *c, const json_t *object, clmgk_device_class device_class);

/* Whether a space, with its defaults, may be compared with the usual one. */
bool tune_may_try(const tune_case *c, size_t space);

/* Stores the result in a cache (NULL: the user's). */
tool_exit tune_store(const tune_case *c, const char *cache_dir, tool_error *error);

void tune_print_report(const tune_report *report, FILE *stream);
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
} tune_child;

/* Starts a process for a job, whose reference is taken (NULL is out of memory). */
tool_exit tune_child_start(const tune_setup *setup, json_t *job, tune_child *child, tool_error *error);

/* Waits for its answer, and ends it: *answer (json_decref) is NULL if the process died, most likely in the driver, or
 * if there was no answer in time: then it is `hung`. */
tool_exit tune_child_finish(const tune_setup *setup, tune_child *child, double limit_ms, bool *hung, json_t **answer,
                            tool_error *error);

/* ---- history ------------------------------------------------------------------------------------------------- */

/* Everything measured on one device, kept beside the tuning cache so that a run that was cut off can go on. */
typedef struct tune_history {
    int file;
    json_t *records; /* an array of what was there when it was opened */
} tune_history;

/* Opens the device's file in the folder of the tuning cache; without `resume` it begins empty. Keeps a second
 * clmgk-tune out. On failure `history` holds what the next takes. */
tool_exit tune_history_open(const char *folder, const clmgk_device_info *device, bool resume, tune_history *history,
                            tool_error *error);
void tune_history_close(tune_history *history);

/* Appends a record (its reference is taken; NULL is out of memory). */
tool_exit tune_history_add(const tune_history *history, json_t *record, tool_error *error);

/* Removes the histories of a device (NULL: of all). */
tool_exit tune_history_remove(const char *folder, const clmgk_device_info *device, tool_error *error);

/* ---- a device --------------------------------------------------------------------------------------------------- */

/* Goes through all cases of report->device. */
tool_exit tune_device(const tune_options *options, tune_setup *setup, tune_report *report, tool_error *error);

#endif
