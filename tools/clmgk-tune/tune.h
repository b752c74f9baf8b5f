/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-tune: measures a device once (tune.c), case by case (cases.c, which also has the search). Each candidate runs
 * in a process of its own (worker.c), so that one that hangs or crashes the driver costs a time limit and nothing else;
 * its result is a line of the history. The main process (main.c, manage.c) never runs a kernel.
 */
#ifndef TUNE_H
#define TUNE_H

#include "cases.h"
#include "output.h"
#include "product.h"

#include <jansson.h>

typedef struct tune_options {
    bench_request request;
    tool_product products[TOOL_MAX_PRODUCTS];
    size_t product_count;
    const char *device;
    bool all_devices, resume, json;
    double budget_s, candidate_s; /* for a device; for a candidate, compiling included */
    tool_exit (*act)(const struct tune_options *options, tool_error *error); /* in the place of measuring; or NULL */
    const char *path;                                                        /* for it */
    char **argv;
    tool_outputs *outputs; /* ends what runs on signals */
    const char *folder;    /* for the programs that candidates compile */
} tune_options;

/* Actions that measure nothing. */
tool_exit tune_show(const tune_options *options, tool_error *error);
tool_exit tune_reset(const tune_options *options, tool_error *error);
tool_exit tune_export(const tune_options *options, tool_error *error);
tool_exit tune_import(const tune_options *options, tool_error *error);

/* The cache, which has to have a file if it is to be changed. The end of an action: prints an object, whose reference
 * it takes, if JSON is asked for. */
tool_exit tune_get_cache(clmgk_tuning_info *info, bool to_change, tool_error *error);
tool_exit tune_print(const tune_options *options, json_t *object, tool_error *error);

/* Measures a device; *report (json_decref) is what was found. */
tool_exit tune_device(const tune_options *options, const clmgk_device_info *device, json_t **report, tool_error *error);

typedef enum tune_kind {
    TUNE_ATTENTION, /* a pass; its choices are engines */
    TUNE_PRODUCT,   /* a shape in a layout; its choices are providers */
    TUNE_CLBLAST    /* CLBlast's parameters, one set for all products of a type */
} tune_kind;

typedef struct tune_case {
    tune_kind kind;
    bench_group *group; /* this and the next: of attention */
    bench_case *item;
    tool_product product; /* to measure with, where it is no attention */
    char name[128];       /* for people */
    json_t *what;         /* what tells it from all others, in the history and the report */
    json_t *known;        /* "CHOICE PARAMETERS": time / the defaults'; 0: not known yet; negative: failed, or wrong */
    json_t *defaults;     /* "CHOICE": its parameters; null: not to be had, or in no time */
    char usual[32];       /* the choice without tuning */
    double default_ms;    /* of that */
    size_t tried;         /* by this run */
    bool begun, finished; /* by this run; nothing is left to do */
    json_t *result;       /* the latest line of the history with an outcome; NULL: none */
} tune_case;

typedef struct tune_list {
    tune_case *cases; /* in the order of their turns */
    size_t count;
    json_t *scores;        /* of changes: log(time after / time before), in any case */
    bench_request request; /* of `groups` */
    bench_group *groups;
} tune_list;

/* Lists all cases; on failure, too, `list` holds what tune_free_cases takes. Finds one; NULL: there is none. */
tool_exit tune_make_cases(const tune_options *options, tune_list *list, tool_error *error);
void tune_free_cases(tune_list *list);
tune_case *tune_find_case(const tune_list *list, const json_t *what);

/* The key of a result's choice. Stores the case's result in the cache. */
#define TUNE_CHOICE_KEY(c) ((c)->item ? "engine" : "provider")
tool_exit tune_store(const tune_case *c, clmgk_context *library, tool_error *error);

typedef struct tune_candidate {
    char choice[32], parameters[512]; /* "name=value,..." */
    char change[64];                  /* "name=value", from a point with the ratio `from`; "": it is a start */
    double from;
} tune_candidate;

/* The words of `parameters` that differ from those of `defaults`. The fastest of a choice (NULL: of all); infinite:
 * none has a time. Notes a time, unless the candidate failed before, which is final; what a line of the history tells
 * about its change. */
void tune_changes(const char *parameters, const char *defaults, tune_candidate *changes);
double tune_fastest(const tune_case *c, const char *choice, tune_candidate *fastest);
void tune_note(const tune_case *c, const char *choice, const char *parameters, double ratio);
void tune_learn(const tune_list *list, const tune_case *c, const json_t *line);

/* The candidate to measure next, which is legal and new. False: nothing is left that promises an improvement. Whether
 * to measure choice number i with its defaults. */
bool tune_propose(const tune_list *list, const tune_case *c, const tool_device *device, tune_candidate *next);
bool tune_may_look(const tune_list *list, const tune_case *c, const tool_device *device, size_t i, const char *choice);

/* The history: everything measured on a device with a driver, beside the tuning cache: JSON objects, one a line. Any
 * process appends lines, whose reference is taken. */
#define TUNE_PATH_SIZE 1200
void tune_history_name(const char *folder, const clmgk_device_info *device, char path[TUNE_PATH_SIZE]);
tool_exit tune_history_add(const char *path, json_t *line, tool_error *error);

/* The main function of a candidate's process, which has its job in this variable of the environment. It stops itself
 * when the candidate is compiled, and goes on by SIGCONT. At its end it has added the job with its result to the
 * history, else its status is not TOOL_DONE. */
#define TUNE_JOB "CLMGK_TUNE_JOB"
int tune_worker(tune_options *options, const char *job);

#endif
