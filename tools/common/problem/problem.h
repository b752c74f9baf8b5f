/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A problem of attention on the user's own arrays: options.c parses what describes it, problem.c (with tensors.c,
 * parameters.c and input.c) opens, checks and reads the files, values.c gathers their numbers.
 */
#ifndef TOOL_PROBLEM_H
#define TOOL_PROBLEM_H

#include "npy.h"
#include "options.h"
#include "output.h"
#include "work.h"

/* ---- arrays: those of clmgk/arrays.h, in its order; before TOOL_FILES each has an option or a label ------------- */

/* The option that gives an array, without dashes; its name in results, which tells apart the arrays of one option. */
const char *tool_array_option(clmgk_array array);
const char *tool_array_label(clmgk_array array);

/* Whether the option takes a list of numbers, too. */
bool tool_takes_numbers(clmgk_array array);

/* Outputs are O, L, gradients, statistics, and what the linear family's forward pass writes; inputs the other arrays.
 */
bool tool_is_output(clmgk_array array);

/* Q, K, V and dO go from their files to the device without a copy on the host. */
bool tool_is_streamed(clmgk_array array);

/* ---- options.c: the command line -------------------------------------------------------------------------------- */

#define TOOL_MAX_PATH 4096 /* of the files of a state */

/* The name of a captured array or number. */
typedef struct tool_text_name {
    char text[64];
} tool_text_name;

/* Points into itself: not to be copied. */
typedef struct tool_problem_arguments {
    clmgk_variant variant;
    clmgk_score score;
    clmgk_estep estep;
    clmgk_alignment alignment;
    clmgk_dtype dtype; /* where has_dtype */
    bool has_dtype;
    clmgk_storage dtype_k, dtype_v, dtype_o, dtype_grad;
    clmgk_precision precision;
    bool causal;
    bool has_window;
    bool tokens_first; /* --layout bnhd */
    bool shared_noise;
    int64_t heads; /* 0: not given */
    int64_t window[2];
    double softcap; /* 0: none */
    double dropout;
    uint64_t seed;
    const char *file[TOOL_FILES]; /* or a list of numbers, as given; NULL: not given */
    clmgk_feature feature;
    int64_t feature_order; /* 0: not given */
    double guard, feature_epsilon;
    bool unnormalised;
    char state_in_files[2][TOOL_MAX_PATH];
    const char *score_mod, *mask_mod; /* NULL: not given */
    int64_t mask_block[2];            /* queries and keys; 0: not given */
    size_t capture_count, number_count;
    tool_text_name captures[CLMGK_MAX_CAPTURES], numbers[CLMGK_MAX_NUMBERS];
    double number[CLMGK_MAX_NUMBERS];
    const char *grad_number[CLMGK_MAX_NUMBERS]; /* files; NULL: not given */
} tool_problem_arguments;

/* Takes the values of the options of options.h, and checks them by variant, score and feature map. */
tool_exit tool_parse_problem(const char *const *values, tool_problem_arguments *arguments, tool_error *error);

/* Fails where `option`, which is required, was not given. `with` (NULL: nothing): the reason. */
tool_exit tool_require(const char *const *values, size_t option, const char *name, const char *with, tool_error *error);

/* A state's prefix P: P.c.npy and P.z.npy, in `paths`, are the files of the arrays from `first` on. */
tool_exit tool_name_state(const char *option, const char *prefix, clmgk_array first, char (*paths)[TOOL_MAX_PATH],
                          tool_problem_arguments *arguments, tool_error *error);

/* Refuses an input file that is also one of the outputs announced so far. */
tool_exit tool_refuse_inputs(const tool_problem_arguments *arguments, const tool_outputs *outputs, tool_error *error);

/* ---- problem.c: what the files hold ----------------------------------------------------------------------------- */

/* One array: its shape, in the file's order of axes, and what the host holds of it. */
typedef struct tool_slot {
    bool used; /* the call has it */
    int axes;
    int64_t shape[NPY_MAX_AXES];
    size_t count; /* of elements */
    void *host;   /* of inputs that are not streamed: float or int32_t, for free() */
} tool_slot;

/* Gives an array a shape, and counts its elements. */
void tool_set_shape(tool_slot *slot, int axes, const int64_t *shape);

/* The size that a letter stands for, and the option that gave it; NULL: not known. */
typedef struct tool_size {
    int64_t value;
    const char *source;
} tool_size;

/* A problem that is known to be right. */
typedef struct tool_problem {
    clmgk_attention_desc desc; /* resolved */
    npy_file file[TOOL_FILES]; /* of inputs; closed when read, those that are streamed by their reader */
    tool_slot slot[TOOL_FILES];
    tool_size size[26]; /* by the letters of clmgk_shape */
    uint64_t seed;
} tool_problem;

/* Without V, which then has no values, E is 1 and G, where K does not give it, H. tool_problem_close takes `problem`
 * also if this fails. */
tool_exit tool_problem_open(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error);
void tool_problem_close(tool_problem *problem);

/* ---- values.c: an array's numbers, dense and in axis order ------------------------------------------------------ */

/* Where an element, given by its number in axis order, lies in the array. */
size_t tool_offset_of(const clmgk_shape *shape, size_t element);

/* Elements of an array that is used: blocks, in an array of blocks. */
size_t tool_element_count(const tool_problem *problem, clmgk_array array);

/* `elements` are of the array's type and lie as the descriptor says. */
void tool_gather(const tool_problem *problem, clmgk_array array, const void *elements, double *values);

/* An input that is used, for free(): of its file, which is read to its end, or of what the host holds. */
tool_exit tool_load_values(tool_problem *problem, clmgk_array array, double **values, tool_error *error);

#endif
