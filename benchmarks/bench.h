/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-bench: variants, sizes and devices compared. What is compared, and how it is run: cases.h.
 *
 *     options.c   the command line           peak.c      the most a device can do
 *     measure.c   first calls, and runs of a shape's cases in turn          rounds.c  the order of these
 *     report.c    text for people            json.c      the stable object
 *     earlier.c   such an object, read       compare.c   two of them      side_by_side.c  several devices
 *     plot.c      a picture
 *     products.c  matrix products            layer.c     the multi-head layer
 *     call.c      one call of a small problem
 *     serving.c   decoding and appending as a server does
 *     parallel.c  several ranks              parallel_rank.c  one of them
 */
#ifndef BENCH_H
#define BENCH_H

#include "cases.h"
#include "output.h"
#include "product.h"

#include "clmgk/dist.h"

#include <jansson.h>

/* ---- what is to be measured -------------------------------------------------------------------------------- */

#define BENCH_MAX_FILES 16 /* of --compare */

#define BENCH_MAX_DEVICES 16 /* of --device */

typedef struct bench_options {
    const char *devices[BENCH_MAX_DEVICES]; /* the first may be NULL: the default */
    size_t device_count;                    /* 1 or more */
    bool all_devices;
    bench_request request;
    clmgk_engine engine;
    const char *parameters, *backward_parameters; /* NULL: the defaults */
    double seconds;                               /* of repeated runs a shape */
    bool short_batches;                           /* on CPUs */
    double threshold;                             /* a slow-down that is a regression, as a fraction */
    bool untuned;                                 /* default parameters, whatever was tuned */
    bool keep_caches;                             /* else: caches of this run's own */
    bool layer, call, serving;    /* the multi-head layer, single calls, or a server's, in the place of cases */
    clmgk_dtype layer_dtype;      /* of these, and over ranks */
    clmgk_dist_schedule parallel; /* AUTO: not over ranks */
    const char *parallel_name;
    int64_t parallel_ranks;
    double send_rate; /* GB/s of a line that delays; 0: none, or (send_equal) as fast as the device computes */
    bool send_equal;
    bool json, verbose;
    char *programs;                       /* a folder's path without links, for free(); NULL: none */
    const char *plot;                     /* NULL: none */
    const char *compare[BENCH_MAX_FILES]; /* one: an earlier run; several: to be shown side by side */
    size_t compare_count;
    tool_product products[TOOL_MAX_PRODUCTS];
    size_t product_count; /* 0: attention */
} bench_options;

extern const tool_program bench_program;

tool_exit bench_parse_options(int argc, char **argv, bench_options *options, bool *finished, tool_error *error);

/* Shows the files of --compare side by side: nothing is measured. */
tool_exit bench_compare_files(const bench_options *options, tool_error *error);

/* ---- devices ------------------------------------------------------------------------------------------------ */

/* The best rates of a run. */
typedef struct bench_peaks {
    double fma_gflops;
    double matrix_gflops; /* of bf16 numbers on a CPU's unit; 0: plans use none */
    double copy_gbps;     /* bytes read and bytes written */
    double read_gbps;
    uint64_t buffer_bytes; /* of each buffer that was copied and read */
    uint64_t wanted_bytes; /* so many are beyond all caches; the device may have no room for them */
} bench_peaks;

/* The kernels that measure a device's peaks. */
typedef struct bench_probe bench_probe;

/* A device with all that was measured on it. */
typedef struct bench_device {
    tool_device tool;
    const char *cache_dir; /* of this run: empty at its start; NULL: the usual one */
    const char *tuning_dir;
    bench_probe *probe;
    bench_peaks peaks; /* of the windows so far */
    bench_group *groups;
    double progress_ms; /* when the last line of progress was printed */
} bench_device;

double bench_gflops(const bench_case *one);
uint64_t bench_memory_bytes(const bench_case *one);
/* Of the peak of multiply-adds, or of AMX where the case uses it. */
double bench_fraction_of_peak(const bench_peaks *peaks, const bench_case *one);
/* Bytes of K and V over the time, as a part of the measured rate of reading. */
double bench_kv_fraction_of_read(const bench_peaks *peaks, const bench_case *one);
/* Bytes of incoming and new states over the time, as a part of the measured rate of copying; 0: no states. */
double bench_state_fraction_of_copy(const bench_peaks *peaks, const bench_case *one);
/* A remark on a case that was faster than the measured peak; NULL: none. */
const char *bench_peak_note(const bench_peaks *peaks, const bench_case *one);

/* Counts of a case as parts of those of its baseline: softmax with the shape's number of heads; in the linear family
 * linear attention with as many. */
typedef struct bench_operations {
    bool counted;       /* else: no baseline */
    bool in_paper;      /* the FiSH paper has the next two: not for other families, the generalised form, backward */
    double matrices;    /* attention matrices of given queries and keys; linear family: features */
    double projections; /* those of queries and keys counted in */
    double layer, parameters;
} bench_operations;
bench_operations bench_compare_counts(const bench_group *group, const bench_case *one);

/* ---- steps ------------------------------------------------------------------------------------------------- */

/* Makes device->probe, which measures less often if the cases are measured for few `seconds`. On failure, too, it is
 * for bench_probe_close. */
tool_exit bench_probe_open(bench_device *device, double seconds, tool_error *error);
void bench_probe_close(bench_device *device);
/* Measure for a moment and raise device->peaks. */
tool_exit bench_probe_compute(bench_device *device, tool_error *error);
/* Makes two large buffers for it. Does nothing where it has just been measured. */
tool_exit bench_probe_memory(bench_device *device, tool_error *error);
/* A shorter bench_probe_compute, unless there has just been one: for places that are passed often. Nothing without
 * device->probe. */
tool_exit bench_probe_between(bench_device *device, tool_error *error);

/* Told of a group's results so far. */
typedef struct bench_listener {
    tool_exit (*tell)(void *user, const bench_device *device, const bench_group *group, tool_error *error);
    void *user;
} bench_listener;

/* Case n of a round. A case that follows a long one finds caches and clock worse: over 2 count rounds every case
 * follows each other one equally often. */
size_t bench_case_of_round(size_t round, size_t n, size_t count);

/* Measures all cases of a group; `listener` is told after each round of runs. A case that is refused or wrong carries
 * its reason; that is no failure here. */
tool_exit bench_measure_group(bench_device *device, const bench_options *options, const bench_listener *listener,
                              bench_group *group, tool_error *error);

/* The layer of the request's variants: forward, training and decoding steps, measured and printed as a table or as an
 * object; signals print what there is. TOOL_CHECK_FAILED: a layer is wrong. */
tool_exit bench_layers(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error);

/* One call of the request's variants, from the enqueue to the end of clFinish, in turn with an empty kernel, measured
 * and printed as a table or as an object; signals print what there is. TOOL_CHECK_FAILED: a call is wrong. */
tool_exit bench_calls(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error);

/* Decoding over caches of many lengths, in pages, in int8 and with a shared prefix, and appending beside a copy, in
 * turn; measured and printed as a table or as an object; signals print what there is. TOOL_CHECK_FAILED: a case is
 * wrong. */
tool_exit bench_serving(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error);

/* The request's variants over 1, 2, 4, ... ranks, both passes, measured and printed as a table or as an object; signals
 * print nothing. TOOL_CHECK_FAILED: a result over ranks is not that of one. */
tool_exit bench_parallel(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error);

/* Matrix products by every provider, measured and printed as tables or as an object; signals print what there is.
 * TOOL_CHECK_FAILED: a product is wrong. */
tool_exit bench_products(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error);

/* ---- results ------------------------------------------------------------------------------------------------ */

/* Whether a case will have no figures: refused by the device, or wrong. */
bool bench_has_failed(const bench_case *one);

/* A line: the device's name. */
void bench_print_device(const bench_device *device, FILE *stream);

/* The short table: a line for each case so far, then the peaks. */
void bench_print_table(const bench_device *device, size_t group_count, FILE *stream);

/* Tables of --verbose: groups as they are measured, then the device's peaks and what came near them. */
void bench_print_group(const bench_device *device, const bench_group *group, FILE *stream);
void bench_print_peaks(const bench_device *device, size_t group_count, FILE *stream);

/* Whether something else ran meanwhile: the median is more than a tenth above the shortest time, or the longest more
 * than twice the median. */
bool bench_was_disturbed(const bench_case *one);

/* A few sentences: what was fastest, by how much, with --verbose beside the paper; whether the machine was busy. */
void bench_print_closing(const bench_options *options, const bench_device *device, FILE *stream);

/* The stable JSON object (README.md), without cases that are still to come; NULL: out of memory. */
json_t *bench_json(size_t group_count, const bench_device *devices, size_t device_count);

/* That object with `rows` under `name` in the place of cases; takes `rows`. */
json_t *bench_rows_json(const bench_device *device, const char *name, json_t *rows);

/* An object as text, for free(); takes it. NULL: out of memory. */
char *bench_json_lines(json_t *object, bool ended_early);

/* Results that are no cases. */
typedef struct bench_results {
    tool_outputs *outputs;
    bool json;
    json_t *(*object)(const void *run);
    void (*print)(const void *run, FILE *stream);
    const void *run;
} bench_results;

/* Prints the object or the table; `ended_early`: leaves it to signals. */
tool_exit bench_give_results(const bench_results *results, bool ended_early, tool_error *error);

/* Reads an earlier object, and refuses one that lacks what the functions below take from it. */
tool_exit bench_load_json(const char *path, json_t **out, tool_error *error);

/* Prints to `stream` what changed beyond noise since the earlier object, which is from `path`. TOOL_CHECK_FAILED:
 * something became slower beyond the threshold, or the two have no case in common. */
tool_exit bench_compare(const json_t *before, const char *path, const json_t *now, double threshold, FILE *stream,
                        tool_error *error);

/* Whether a device of one object is one of the other's: else nothing of theirs is a regression. */
bool bench_share_a_device(const json_t *before, const json_t *now);

/* Cases of objects: whether two measure the same work; a case's median, and how far it lies above the smallest time as
 * a fraction, which is what chance adds; its name. */
bool bench_is_same_work(const json_t *old, const json_t *one);
void bench_read_time(const json_t *one, double *median, double *noise);
void bench_name_case(const json_t *one, char *name, size_t size);

/* Objects of files side by side: a table. */
tool_exit bench_show_side_by_side(const json_t *const *objects, const char *const *paths, size_t count, FILE *stream,
                                  tool_error *error);

/* Announces the picture, whose number goes to *output; it may be none of the files of --compare. */
tool_exit bench_announce_plot(const bench_options *options, tool_outputs *outputs, size_t *output, tool_error *error);

/* Draws into output number `output`, unless no case was measured. */
tool_exit bench_plot(const bench_options *options, const bench_device *devices, size_t device_count,
                     tool_outputs *outputs, size_t output, tool_error *error);

#endif
