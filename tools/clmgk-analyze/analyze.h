/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-analyze: the analyses of the papers. Matrices: arguments.c, population.c (which matrices, and their rows),
 * observe.c, pairs.c and rank.c (the analyses), report.c and pictures.c. --theorems: cases.c, theorem1.c, theorem2.c,
 * theorems.c.
 */
#ifndef ANALYZE_H
#define ANALYZE_H

#include "problem.h"

#include "reference/reference.h"

/* ---- arguments.c ------------------------------------------------------------------------------------------------ */

/* X(NAME, name, whether there is a picture of it) */
#define ANALYZE_LIST(X)                                                                                                \
    X(MATRICES, "matrices", true)                                                                                      \
    X(RANK, "rank", true)                                                                                              \
    X(DISTANCES, "distances", true)                                                                                    \
    X(COMPONENTS, "components", true)                                                                                  \
    X(NLL, "nll", false)                                                                                               \
    X(RESPONSIBILITIES, "responsibilities", true)

typedef enum analyze_kind {
#define ANALYZE_ENUM(name, ...) ANALYZE_##name,
    ANALYZE_LIST(ANALYZE_ENUM)
#undef ANALYZE_ENUM
        ANALYZE_KINDS
} analyze_kind;

/* Points into itself: not to be copied. */
typedef struct analyze_arguments {
    tool_problem_arguments problem; /* without theorems */
    bool json;
    bool theorems;
    bool chosen[ANALYZE_KINDS];          /* by --analyses; none: all that apply */
    const char *only_for[ANALYZE_KINDS]; /* a given option of this analysis alone; NULL: none */
    const char *plots;                   /* the pictures' prefix; NULL: none */
    size_t format;                       /* of analyze_formats */
    const char *batch_list, *head_list;  /* as given; NULL: all */
    int64_t rows;                        /* 0: not given */
    double threshold;
    double fraction;
    bool full_svd;
    /* of theorems */
    const char *device;
    int64_t tokens;
    int64_t trials;
    uint64_t seed;
} analyze_arguments;

extern const tool_program analyze_program;
extern const char *const analyze_formats[2]; /* file name extensions */

const char *analyze_name(analyze_kind kind);

/* *finished: --help or --version was answered. */
tool_exit analyze_parse(int argc, char **argv, analyze_arguments *arguments, bool *finished, tool_error *error);

/* A list of indices below `limit`, without repetitions, for free(); `text` NULL: all of them. */
tool_exit analyze_parse_indices(const char *option, const char *text, int64_t limit, int64_t **indices, int64_t *count,
                                tool_error *error);

/* ---- population.c: which matrices, and their rows --------------------------------------------------------------- */

#define ANALYZE_MAX_ROWS     4096               /* of a matrix, unless --rows says otherwise */
#define ANALYZE_MAX_ELEMENTS (INT64_C(1) << 26) /* likewise */
#define ANALYZE_MAX_MEMBERS  8192               /* for the principal components */

/* Matrices of the chosen sequences (batches) and heads: member m is of batch m / heads and head m % heads of the two
 * lists. All have the same `rows` of the `length` queries. */
typedef struct analyze_population {
    tool_problem problem;
    clmgk_ref_problem reference;
    void *values[CLMGK_ARRAYS]; /* double, but for integers, which belong to the problem */
    int64_t *batch, *head;
    int64_t batches, heads, members;
    int64_t *row; /* [rows]: positions of queries */
    int64_t rows, keys;
    bool wanted[ANALYZE_KINDS];
    /* progress */
    double start_ms, said_ms;
    int64_t done, total; /* rows */
} analyze_population;

/* analyze_population_close takes `population` also if this fails. */
tool_exit analyze_population_open(const analyze_arguments *arguments, analyze_population *population,
                                  tool_error *error);
void analyze_population_close(analyze_population *population);

int64_t analyze_batch_of(const analyze_population *population, int64_t member);
int64_t analyze_head_of(const analyze_population *population, int64_t member);

/* Makes `count` rows of members, with the numbers member * rows + row, on all processors. If that takes long, prints
 * its progress on standard error. */
tool_exit analyze_weigh(analyze_population *population, int64_t count, const int64_t *number,
                        const clmgk_ref_weight_rows *out, tool_error *error);

/* ---- observe.c: analyses of single rows ------------------------------------------------------------------------- */

#define ANALYZE_PICTURES 16  /* members that are drawn, at most */
#define ANALYZE_PIXELS   160 /* of a side, at most */

typedef struct analyze_member {
    double entropy; /* sums over rows: of -sum_j a log a */
    double largest;
    double *share;            /* [M]: sums of gamma */
    double component_entropy; /* sum over pairs of -sum_r gamma log gamma */
    double pairs;             /* with a responsibility */
    double *pixels;           /* [height,width] sums of weights, of the first members; NULL: not drawn */
    double *gamma_pixels;     /* [M,height,width], of the first member */
} analyze_member;

typedef struct analyze_observations {
    analyze_member *member;
    int64_t components;
    int64_t height, width;
    int64_t sequences;          /* with a likelihood of their own: chosen batches, or packed sequences */
    double *nll_sum, *nll_rows; /* [sequences,heads] */
} analyze_observations;

tool_exit analyze_observations_create(const analyze_population *population, analyze_observations *observations,
                                      tool_error *error);
void analyze_observations_free(const analyze_population *population, analyze_observations *observations);

/* Memory that the observations need for `count` rows, beside the weights; free() it. */
tool_exit analyze_make_rows(const analyze_population *population, int64_t count, clmgk_ref_weight_rows *rows,
                            tool_error *error);
void analyze_free_rows(clmgk_ref_weight_rows *rows);

/* Takes rows in, which must be finite. */
tool_exit analyze_observe(const analyze_population *population, int64_t count, const int64_t *number,
                          const clmgk_ref_weight_rows *rows, analyze_observations *observations, tool_error *error);

/* ---- pairs.c: distances and principal components ---------------------------------------------------------------- */

typedef struct analyze_pairs {
    double *distance; /* [batches,heads,heads]: |A_h - A_h'|^2 for h < h' */
    double mean, variance;
    double *gram;               /* [members,members] */
    double *spectrum, *centred; /* [members]: eigenvalues, the largest first */
    int64_t components, centred_components;
} analyze_pairs;

/* Visits all rows, of all members at once. `observations` NULL: they have already been taken. */
tool_exit analyze_pairs_solve(analyze_population *population, double fraction, analyze_observations *observations,
                              analyze_pairs *pairs, tool_error *error);
void analyze_pairs_free(analyze_pairs *pairs);

/* Of two of the chosen heads, the mean over sequences. */
double analyze_mean_distance(const analyze_population *population, const analyze_pairs *pairs, int64_t head,
                             int64_t other);

/* ---- rank.c ----------------------------------------------------------------------------------------------------- */

typedef struct analyze_rank {
    int64_t rank;
    int64_t low, high; /* where rounding may have moved a singular value over the threshold; else both the rank */
    double largest, smallest;
    double *values; /* [min(rows,keys)], the largest first, of members that are drawn; else NULL */
} analyze_rank;

typedef struct analyze_ranks {
    analyze_rank *member;
    const char *method; /* of LAPACK's */
} analyze_ranks;

/* Goes over all rows, one member after the other; without `ranks`, for the observations alone. */
tool_exit analyze_ranks_solve(analyze_population *population, const analyze_arguments *arguments,
                              analyze_observations *observations, analyze_ranks *ranks, tool_error *error);
void analyze_ranks_free(const analyze_population *population, analyze_ranks *ranks);

/* ---- report.c and pictures.c ------------------------------------------------------------------------------------ */

typedef struct analyze_results {
    const analyze_population *population;
    analyze_observations observations;
    analyze_pairs pairs;
    analyze_ranks ranks;
} analyze_results;

/* Files of pictures; an empty path: there is none. */
typedef struct analyze_plot {
    char path[TOOL_MAX_PATH];
    size_t place; /* among the outputs */
} analyze_plot;

/* Announces the picture P-NAME.EXTENSION. */
tool_exit analyze_announce(const analyze_arguments *arguments, const char *name, tool_outputs *outputs,
                           analyze_plot *plot, tool_error *error);

/* Opens the picture, and a script that begins with its terminal. */
tool_exit analyze_begin_plot(const analyze_arguments *arguments, const analyze_plot *plot, int width, int height,
                             tool_outputs *outputs, FILE **script, FILE **picture, tool_error *error);
/* Draws; closes the script also if that fails. */
tool_exit analyze_end_plot(const analyze_arguments *arguments, FILE *script, FILE *picture, tool_error *error);

tool_exit analyze_draw(const analyze_arguments *arguments, const analyze_results *results,
                       const analyze_plot plots[ANALYZE_KINDS], tool_outputs *outputs, tool_error *error);
tool_exit analyze_report(const analyze_arguments *arguments, const analyze_results *results,
                         const analyze_plot plots[ANALYZE_KINDS], tool_error *error);

/* ---- theorems.c ------------------------------------------------------------------------------------------------- */

tool_exit analyze_theorems(const analyze_arguments *arguments, tool_outputs *outputs, tool_error *error);

#endif
