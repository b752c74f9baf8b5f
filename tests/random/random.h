/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random problems: each is drawn from a seed and a number, run, and compared with the reference. A problem that fails
 * is made as small as possible while it still fails, and printed as a command of clmgk-run.
 *
 * A program takes seconds to build, so options that need another program come from a configuration, which many problems
 * share. Everything else is drawn for each problem.
 */
#ifndef CLMGK_TEST_RANDOM_H
#define CLMGK_TEST_RANDOM_H

#include "harness/harness.h"

/* ---- configurations.c ------------------------------------------------------------------------------------------- */

enum { RD_PARAMETERS = 96 }; /* bytes of kernel parameters as text */

/* What makes a program. */
typedef struct rd_configuration {
    clmgk_engine engine;
    bool wide;      /* larger blocks */
    int64_t few;    /* most rows of a sequence; 0: any number */
    int64_t splits; /* of the keys in the forward pass; 0: one */
    int64_t ratio;  /* H / G: admixture family */
    bool paged;     /* keys and values in pages */
    bool broad;     /* also what other configurations lack: long sequences, all sizes of a class, more strides of 0 */
    const char *parameters; /* of the kernels; NULL: those of `wide` and the engine */
    /*
     * Lengths, heads and batch are left out. Flags, types and sets of outputs are as they will be (the sets as far as
     * the variant has them). Sizes D and E are the largest of their class. An array of priors or variances may get
     * another shape; softcap and dropout, another value; sequences, another number; the bias, fewer batches and heads.
     */
    clmgk_attention_desc desc;
} rd_configuration;

/* The options of a configuration as bits, and their names. */
#define RD_OPTIONS 12
extern const char *const rd_option_names[RD_OPTIONS];
uint32_t rd_options_of(const rd_configuration *configuration);

/*
 * Configuration of problem number `number`: up to RD_LINEAR one of a list, in turn, that holds every pair of options;
 * up to RD_MATRIX one of the linear family's, which has few of them;
 * up to RD_MATRIX_RANDOM one of the matrix engine's, of all families that it has; up to RD_MATRIX_SINGLES a random one
 * for that engine, with 16-bit types, up to RD_MATRIX_LINEAR one with f32 arrays, and up to RD_PAGES one of the linear
 * family, which RD_SHARED consecutive problems share; up to RD_TYPES one of a list with keys and values in pages; up to
 * RD_LISTED one of a list with types of caches;
 * up to RD_OPTIMISED one of a few that are worth a compiler's optimisation; up to RD_BROAD a random one, which
 * RD_SHARED consecutive problems share; from there on a random one with what those lack: the parameters that plans
 * choose themselves, and others; AMX; forms for few rows on all engines; wide heads; many components; L's low part.
 * From RD_TEXTS on those below it once more, with a score and a mask as text.
 */
enum {
    RD_LINEAR = 25000,
    RD_MATRIX = 37500,
    RD_MATRIX_RANDOM = 43750,
    RD_MATRIX_SINGLES = 46875,
    RD_MATRIX_LINEAR = 48500,
    RD_PAGES = 49000,
    RD_TYPES = 49900,
    RD_LISTED = 50000,
    RD_OPTIMISED = 100000,
    RD_BROAD = 1000000,
    RD_TEXTS = 100000000,
    RD_SHARED = 25
};
rd_configuration rd_configuration_of(uint64_t seed, uint64_t number);
size_t rd_listed(const rd_configuration **list);
size_t rd_listed_linear(const rd_configuration **list);
size_t rd_listed_matrix(const rd_configuration **list);
size_t rd_listed_pages(const rd_configuration **list);
size_t rd_listed_types(const rd_configuration **list);

/* The largest size of the class of head sizes before that of `size`. */
int64_t rd_class_below(const clmgk_attention_desc *desc, int64_t size);

/* ---- draw.c, values.c ------------------------------------------------------------------------------------------- */

/* A problem, and how it is to be run. */
typedef struct rd_case {
    clmgk_attention_desc desc; /* without strides */
    clmgk_engine engine;
    int layout;          /* of arrays with strides: RD_DENSE, RD_TOKENS_FIRST, or a permutation of the axes with gaps */
    int repeated;        /* bits: axes of inputs and dO whose stride is 0 */
    uint32_t accumulate; /* gradients that are added to what is there */
    bool grad_lse;       /* dL is given */
    char parameters[RD_PARAMETERS];
    char backward_parameters[RD_PARAMETERS];
    th_problem problem;
} rd_case;

enum { RD_DENSE, RD_TOKENS_FIRST, RD_PERMUTED, RD_LAYOUTS = RD_PERMUTED + 48 };

rd_case rd_draw(uint64_t seed, uint64_t number);
void rd_case_free(rd_case *c);

/* Makes random arrays for the case's descriptor. False: the descriptor is invalid. */
bool rd_make_problem(rd_case *c, uint64_t seed);

/* Scales, zeros, ties, hidden keys, finite masks, huge scores, lengths beyond the keys and numbers that are no pages
 * (clmgk-run refuses these), and, if rows of tokens are `apart`, NaN where lengths, packing and pages hide it. */
void rd_spoil_values(th_problem *problem, bool apart, uint64_t *state);

/* ---- compare.c -------------------------------------------------------------------------------------------------- */

/* A deliberate error that tests these functions: an output is multiplied by `factor` if `when` holds. */
typedef struct rd_fault {
    th_name name;
    double factor;
    bool (*when)(const clmgk_attention_desc *desc);
} rd_fault;

/* Bit n: array n, an output, is out of bound; RD_BROKEN: something else is wrong. */
#define RD_BROKEN (UINT64_C(1) << 63)
_Static_assert((int)TH_LSE_LOW < 63, "the last output");

typedef struct rd_verdict {
    uint64_t wrong;
    char text[2048]; /* a line for each array */
} rd_verdict;

/* Runs every pass that the case asks for. The case's inputs are rounded to what the device holds. */
rd_verdict rd_run(th_session *session, rd_case *c, const rd_fault *fault);

/* ---- determined.c ------------------------------------------------------------------------------------------------ */

/* False: gradients and statistics depend on rounding, and have no right answer. */
bool rd_is_determined(const th_problem *problem);

/* ---- minimise.c ------------------------------------------------------------------------------------------------- */

typedef struct rd_budget {
    int tries;
    double seconds;
} rd_budget;

/* Makes the case smaller while one of the arrays in `wrong` stays out of bound. Returns the number of tries: none with
 * pages. */
int rd_minimise(th_session *session, rd_case *c, uint64_t wrong, const rd_fault *fault, rd_budget budget);

/* ---- command.c -------------------------------------------------------------------------------------------------- */

/* The axes of an array by their symbols, '-' for one that it lacks: "bh-nd". */
const char *rd_axes_of(const clmgk_attention_desc *desc, th_name name);

/* Writes the inputs to .npy files in `folder` and the command that runs them to `text`. */
void rd_write_command(const rd_case *c, const char *folder, char *text, size_t capacity);

#endif
