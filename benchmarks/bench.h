/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-bench: variants, sizes and devices compared.
 *
 *     options.c   the command line           problem.c   descriptors and arrays of a shape
 *     shapes.c    sizes, as data             validate.c  sampled rows against the reference
 *     peak.c      what the device can do     measure.c   first calls, and runs of a shape's cases in turn
 *     report.c    text for people            json.c      the stable object, compare.c two of them, plot.c a picture
 */
#ifndef BENCH_H
#define BENCH_H

#include "opencl.h"
#include "output.h"
#include "tool.h"

#include <jansson.h>

/* ---- what is to be measured -------------------------------------------------------------------------------- */

enum { BENCH_SUITE_QUICK = 1, BENCH_SUITE_PAPER = 2, BENCH_SUITE_FULL = 4 };

/* More cases of softmax beside the variants that a shape compares. */
enum { BENCH_WITH_CAUSAL = 1, BENCH_WITH_STORAGE = 2 };

/* A figure of the paper: seconds per iteration and gigabytes of the whole network. */
typedef struct bench_figure {
    clmgk_variant variant;
    int64_t heads;
    double seconds;
    double gigabytes;
} bench_figure;

typedef struct bench_shape {
    const char *name; /* NULL: given by the options */
    const char *what;
    unsigned suites;
    unsigned with;
    int64_t batch, heads, kv_heads, components, length, length_k, head_size, value_size; /* 0: the default */
    bool causal;
    const bench_figure *figures; /* ends with 0 heads; NULL: none */
} bench_shape;

extern const bench_shape bench_shapes[];
extern const size_t bench_shape_count;

/* The paper's figure for a variant with so many heads; NULL: none. */
const bench_figure *bench_find_figure(const bench_shape *shape, clmgk_variant variant, int64_t heads);

#define BENCH_HEADS_OF_SHAPE 0
#define BENCH_HEADS_HALF     (-1) /* of the shape's, as the paper compares */

typedef struct bench_variant {
    clmgk_variant variant;
    int64_t heads;
} bench_variant;

#define BENCH_MAX_VARIANTS 16
#define BENCH_MAX_SHAPES   32
#define BENCH_DTYPES       3

typedef struct bench_options {
    const char *device;
    bool all_devices;
    bench_variant variants[BENCH_MAX_VARIANTS];
    size_t variant_count;
    clmgk_dtype dtypes[BENCH_DTYPES];
    size_t dtype_count;
    bench_shape shapes[BENCH_MAX_SHAPES];
    size_t shape_count;
    clmgk_engine engine;
    const char *parameters; /* NULL: the defaults */
    double seconds;         /* of repeated runs a shape */
    double threshold;       /* a slow-down that is a regression, as a fraction */
    bool keep_caches;       /* else: caches of this run's own */
    bool json;
    const char *plot;    /* NULL: none */
    const char *compare; /* NULL: none */
} bench_options;

extern const tool_program bench_program;

tool_exit bench_parse_options(int argc, char **argv, bench_options *options, bool *finished, tool_error *error);

/* ---- cases and their results -------------------------------------------------------------------------------- */

typedef struct bench_error_found {
    double max;      /* largest error of O in the slice that came nearest to its bound */
    double bound;    /* the bound there */
    int64_t sampled; /* rows */
    bool ok;
    char message[512]; /* if not ok */
} bench_error_found;

typedef struct bench_case {
    const bench_shape *shape;
    clmgk_attention_desc desc; /* resolved */
    bool refused;              /* the device cannot: `reason` */
    char reason[CLMGK_ERROR_MESSAGE_SIZE];

    clmgk_engine engine;
    char *parameters;
    char *compiler_options;
    char *kernel;
    double flops;
    uint64_t array_bytes; /* of all that a call is given: what it must move at least */
    uint64_t workspace_bytes;
    double compile_ms;
    double first_cold_ms; /* < 0: the program had been compiled for another case */
    double first_warm_ms; /* < 0: no cache on disk */
    bench_error_found error;
    tool_spread time_ms;
    int repetitions; /* of time_ms; 0: not measured */
    int calls;       /* a repetition */
    bool event_clock;
    uint64_t process_peak_bytes;
} bench_case;

/* The cases of one shape, measured in turn. */
typedef struct bench_group {
    const bench_shape *shape;
    bench_case *cases;
    size_t count;
} bench_group;

/* All groups that the options ask for; fails where a descriptor is not valid. */
tool_exit bench_make_groups(const bench_options *options, bench_group **groups, tool_error *error);
void bench_free_groups(const bench_options *options, bench_group *groups);

/* The softmax case that `one` is compared to: same storage, same causality, the shape's number of heads. NULL: not
 * measured. */
const bench_case *bench_baseline(const bench_group *group, const bench_case *one);

typedef struct bench_peaks {
    double fma_gflops;
    double copy_gbps;
} bench_peaks;

/* A device with all that was measured on it. */
typedef struct bench_device {
    tool_device tool;
    const char *cache_dir; /* of this run: empty at its start; NULL: the usual one */
    bench_peaks peaks;
    bench_group *groups;
} bench_device;

double bench_gflops(const bench_case *one);
uint64_t bench_memory_bytes(const bench_case *one);
double bench_fraction_of_peak(const bench_device *device, const bench_case *one);

/* ---- arrays ------------------------------------------------------------------------------------------------- */

#define BENCH_PATTERN 1048583 /* a prime: heads and batches of any size hold different numbers */

/* Where in the pattern an array begins. */
enum { BENCH_PHASE_Q = 0, BENCH_PHASE_K = 300007, BENCH_PHASE_V = 600011, BENCH_PHASE_SHIFT = 900001 };

/* Arrays of a group: inputs are one pattern of normals over and over, so that all cases of a storage type share
 * them and none is kept on the host. */
typedef struct bench_arrays {
    cl_mem q[BENCH_DTYPES], k[BENCH_DTYPES], v[BENCH_DTYPES]; /* by clmgk_dtype */
    double *pattern[BENCH_DTYPES];                            /* [BENCH_PATTERN], as stored */
    cl_mem o, lse;
} bench_arrays;

/* On failure `arrays` holds what bench_arrays_release takes. */
tool_exit bench_arrays_create(const tool_device *device, const bench_group *group, bench_arrays *arrays,
                              tool_error *error);
void bench_arrays_release(bench_arrays *arrays);

/* Element of an input that begins at `phase`. */
double bench_pattern_at(const bench_arrays *arrays, clmgk_dtype dtype, size_t phase, size_t element);
float bench_prior(const clmgk_attention_desc *desc, size_t element);
float bench_shift(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element);

/* What a case has of its own, and all its arrays by name. */
typedef struct bench_own {
    cl_mem prior, shift, workspace;
    clmgk_attention_args args;
} bench_own;

/* On failure `own` holds what bench_own_release takes. */
tool_exit bench_own_create(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                           size_t workspace_bytes, bench_own *own, tool_error *error);
void bench_own_release(bench_own *own);

/* Elements of the arrays of a resolved descriptor. */
typedef struct bench_elements {
    size_t q, k, v, o, lse, prior, shift;
} bench_elements;
bench_elements bench_count_elements(const clmgk_attention_desc *desc);

/* Bytes of the arrays that a call is given, without the workspace. */
uint64_t bench_array_bytes(const clmgk_attention_desc *desc);

/* ---- steps -------------------------------------------------------------------------------------------------- */

/* Measures the peaks and raises device->peaks to them. */
tool_exit bench_measure_peaks(bench_device *device, tool_error *error);

/* Compares sampled rows of the outputs in `args` with the reference, for about `seconds`. */
tool_exit bench_validate(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                         const clmgk_attention_args *args, double seconds, bench_error_found *found, tool_error *error);

/* Measures all cases of a group. A case that is refused or wrong carries its reason; that is no failure here. */
tool_exit bench_measure_group(bench_device *device, const bench_options *options, bench_group *group,
                              tool_error *error);

/* ---- results ------------------------------------------------------------------------------------------------ */

/* Tables for people. */
void bench_print_device(const bench_options *options, const bench_device *device, FILE *stream);

/* "mgk 4" */
typedef struct bench_label {
    char text[48];
} bench_label;
bench_label bench_case_label(const bench_case *one);

/* The stable JSON object (README.md); NULL: out of memory. */
json_t *bench_json(const bench_options *options, const bench_device *devices, size_t device_count);

/* Reads an earlier object. */
tool_exit bench_load_json(const char *path, json_t **out, tool_error *error);

/* Prints what changed beyond noise to `stream`; TOOL_CHECK_FAILED: something became slower beyond the threshold. */
tool_exit bench_compare(const json_t *before, const json_t *now, double threshold, FILE *stream, tool_error *error);

/* Fails at once, before any measurement, where there is no gnuplot. */
tool_exit bench_plot_check(tool_error *error);
/* Draws into output number `output`. */
tool_exit bench_plot(const bench_options *options, const bench_device *devices, size_t device_count,
                     tool_outputs *outputs, size_t output, tool_error *error);

#endif
