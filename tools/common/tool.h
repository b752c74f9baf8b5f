/* SPDX-License-Identifier: Apache-2.0 */
/* What all programs share: exit statuses, failure, options, printing. */
#ifndef TOOL_H
#define TOOL_H

#include "clmgk/clmgk.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TOOL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define TOOL_PRINTF(text, first)
#endif

#define TOOL_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TOOL_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define TOOL_MAX(a, b)    ((a) > (b) ? (a) : (b))

/* ---- exit statuses and failure ----------------------------------------------------------------------------- */

typedef enum tool_exit {
    TOOL_DONE = 0,
    TOOL_CHECK_FAILED = 1, /* a check or comparison failed */
    TOOL_BAD_INPUT = 2,    /* bad usage or bad input: nothing was written */
    TOOL_NO_DEVICE = 3,    /* no usable device, or the device or driver failed */
    TOOL_SYSTEM_ERROR = 4  /* out of memory, an output that cannot be written */
} tool_exit;

typedef struct tool_error {
    char message[2048];
    clmgk_error library; /* for its calls; the status is not CLMGK_OK where it was the library that failed */
} tool_error;

/* Records a message and returns `status`. */
tool_exit tool_fail(tool_error *error, tool_exit status, const char *format, ...) TOOL_PRINTF(3, 4);

/* Out of host memory while making `what`. */
tool_exit tool_fail_memory(tool_error *error, const char *what);

/* TOOL_DONE, or the failure of a call of the library that was given error->library, of an OpenCL call, or of making
 * `what`, which is NULL. */
tool_exit tool_check_library(clmgk_status status, tool_error *error);
tool_exit tool_check_cl(cl_int code, const char *call, tool_error *error);
tool_exit tool_check_memory(const void *made, const char *what, tool_error *error);

/* Return at once, or go to a clean-up label with `status` set, when a step fails. */
#define TOOL_TRY(call)                                                                                                 \
    do {                                                                                                               \
        const tool_exit try_status_ = (call);                                                                          \
        if (try_status_ != TOOL_DONE)                                                                                  \
            return try_status_;                                                                                        \
    } while (0)
#define TOOL_TRY_GOTO(status, call, label)                                                                             \
    do {                                                                                                               \
        (status) = (call);                                                                                             \
        if ((status) != TOOL_DONE)                                                                                     \
            goto label;                                                                                                \
    } while (0)

/* ---- options ------------------------------------------------------------------------------------------------ */

/* An option of a program. A table of them begins with TOOL_STANDARD_OPTIONS; the program's own follow. */
typedef struct tool_option {
    const char *name;     /* without dashes */
    const char *argument; /* its name in --help; NULL: a flag */
    const char *help;     /* lines separated by '\n'; NULL: a name that other programs or results have */
} tool_option;

enum {
    TOOL_OPTION_DEVICE,
    TOOL_OPTION_JSON,
    TOOL_OPTION_HELP,
    TOOL_OPTION_VERSION,
    TOOL_STANDARD_OPTION_COUNT /* the first index of the program's own options */
};

#define TOOL_STANDARD_OPTIONS                                                                                          \
    {"device", "SEL",                                                                                                  \
     "PLATFORM:DEVICE as clmgk-info prints them, cpu or gpu (the first one), or a part of a\n"                         \
     "device's or platform's name; default: $CLMGK_DEVICE, else the first GPU, else the first CPU"},                   \
        {"json", NULL, "print one JSON object on standard output"}, {"help", NULL, "print this help"},                 \
    {                                                                                                                  \
        "version", NULL, "print the version"                                                                           \
    }

/* A program's own options may be a list of lines X(NAME, name, argument, help): this makes the table's rows, */
#define TOOL_OPTION_ROW(name, ...) {__VA_ARGS__},
/* and this the numbers. */
#define TOOL_OPTION_NUMBER(name, ...) OPTION_##name,

typedef struct tool_program {
    const char *name;    /* "clmgk-run" */
    const char *summary; /* printed by --help before the options */
    const char *notes;   /* printed after them; NULL: nothing */
    const tool_option *options;
    size_t option_count;
} tool_program;

/*
 * Parses the command line into values[option_count]: NULL for an option that was not given, "" for a given flag.
 * Options are written in full and given once; other arguments are refused. --help and --version print and set
 * *finished: the program then ends with the returned status.
 */
tool_exit tool_parse_options(const tool_program *program, int argc, char **argv, const char **values, bool *finished,
                             tool_error *error);

/* Refuses an empty selector, which NULL is not. Only the environment's may be empty: a script's variable that is not
 * set shall not choose a device. */
tool_exit tool_check_selector(const char *selector, tool_error *error);

/* Values. `option` is the option's name without dashes, for the message. Where `text` is NULL, the option was not
 * given, and the value stays. */
tool_exit tool_parse_integer(const char *option, const char *text, int64_t low, int64_t high, int64_t *value,
                             tool_error *error);

/* Exactly `count` of them, separated by commas. */
tool_exit tool_parse_integers(const char *option, const char *text, int64_t low, int64_t high, size_t count,
                              int64_t *values, tool_error *error);
/* How far a window goes to the left and to the right, -1 for no limit. */
tool_exit tool_parse_window(const char *text, int64_t high, int64_t sides[2], tool_error *error);
tool_exit tool_parse_u64(const char *option, const char *text, uint64_t *value, tool_error *error);
tool_exit tool_parse_number(const char *option, const char *text, double *value, tool_error *error);

tool_exit tool_parse_positive(const char *option, const char *text, double *value, tool_error *error);

/* One of `count` names; *index is its place. */
tool_exit tool_parse_name(const char *option, const char *text, const char *const *names, size_t count, size_t *index,
                          tool_error *error);

/* Numbers separated by commas, in the range of float or written as infinities or NaN. *numbers is for free(). */
tool_exit tool_parse_numbers(const char *option, const char *text, double **numbers, size_t *count, tool_error *error);

/* " f32 f16 ...": the names of the storage types, for help texts. */
#define TOOL_DTYPE_NAME(NAME, value, name, ...) " " name
#define TOOL_DTYPE_NAMES                        CLMGK_DTYPE_LIST(TOOL_DTYPE_NAME)
#define TOOL_DTYPE_ITEM(NAME, value, name, ...) ", " name
#define TOOL_DTYPE_LIST                         CLMGK_DTYPE_LIST(TOOL_DTYPE_ITEM)
#define TOOL_CACHE_DTYPE_NAMES                  CLMGK_CACHE_DTYPE_LIST(TOOL_DTYPE_NAME)

/* A value of one of the library's enumerations, by its name; NULL: as it is. */
tool_exit tool_parse_variant(const char *option, const char *text, clmgk_variant *variant, tool_error *error);
tool_exit tool_parse_dtype(const char *option, const char *text, clmgk_dtype *dtype, tool_error *error);
tool_exit tool_parse_storage(const char *option, const char *text, clmgk_storage *storage, tool_error *error);
/* The same for K and V, which may have types of their own. */
tool_exit tool_parse_cache_storage(const char *option, const char *text, clmgk_storage *storage, tool_error *error);
tool_exit tool_parse_engine(const char *option, const char *text, clmgk_engine *engine, tool_error *error);
tool_exit tool_parse_score(const char *option, const char *text, clmgk_score *score, tool_error *error);
tool_exit tool_parse_estep(const char *option, const char *text, clmgk_estep *estep, tool_error *error);
tool_exit tool_parse_feature(const char *option, const char *text, clmgk_feature *feature, tool_error *error);
tool_exit tool_parse_precision(const char *option, const char *text, clmgk_precision *precision, tool_error *error);
tool_exit tool_parse_alignment(const char *option, const char *text, clmgk_alignment *alignment, tool_error *error);

/* "auto (default), lane, ...": for --help. */
#define TOOL_ENGINE_NAME(name, value, text) ", " #text
#define TOOL_ENGINE_NAMES                   "auto (default)" CLMGK_ENGINE_LIST(TOOL_ENGINE_NAME)

/* ---- printing ----------------------------------------------------------------------------------------------- */

/* Prints the one line of a failure on standard error (nothing for an empty message); returns `status`. */
int tool_report(const tool_program *program, tool_exit status, const tool_error *error);

/* Replaces control characters of a text, in ASCII or UTF-8, by spaces: it then is a line, and commands no terminal. */
void tool_flatten(char *text);

/* `one` for a count of 1, else `many`. */
const char *tool_plural(uint64_t count, const char *one, const char *many);

/* JSON values: text whose bytes that are not UTF-8 are shown as '?' (NULL is null), a number, null where it is not
 * finite; one that is null unless it is positive. */
json_t *tool_json_text(const char *text);
json_t *tool_json_number(double number);
json_t *tool_json_positive(double number);

/* What an object has under a key: text (NULL: none), a number (0: none). */
const char *tool_json_text_of(const json_t *object, const char *key);
double tool_json_number_of(const json_t *object, const char *key);

/* name, platform, driver and compute_units of a device. */
json_t *tool_json_device(const clmgk_device_info *info);

/* Appends `item` to a list, takes its reference; without memory the list is freed and becomes NULL. */
void tool_json_append(json_t **list, json_t *item);

/* `object` with the pairs of `rest`, whose reference is taken; NULL: out of memory. */
json_t *tool_json_merge(json_t *object, json_t *rest);

/* "f32", or with the types that differ from Q's and a precision that is not exact: "f32 kv=f16", "bf16 k=f16 o=f32",
 * "f32 precision=tf32". */
typedef struct tool_dtypes {
    char text[48];
} tool_dtypes;
tool_dtypes tool_dtypes_text(const clmgk_attention_desc *desc);

/* {"dtype_k", "dtype_v", "dtype_o"}, null where the type is Q's, and {"precision"}, the least that is allowed, null if
 * exact; NULL: out of memory. */
json_t *tool_json_own_dtypes(const clmgk_attention_desc *desc);

/* batch, heads, kv_heads, components, length, length_k, head_size, value_size and causal. */
json_t *tool_json_sizes(const clmgk_attention_desc *desc);

/* feature, features and state: null outside the linear family, state also where there is none. */
json_t *tool_json_features(const clmgk_attention_desc *desc);

/* `object` as lines of text, for free(); takes its reference. NULL: out of memory, also if `object` is NULL. */
char *tool_json_lines(json_t *object);

/* Prints `object` on standard output, takes the caller's reference, and sees that it got there. NULL (as the
 * constructors of jansson return without memory) is out of memory. */
tool_exit tool_print_json(json_t *object, tool_error *error);

/* A pipe that programs started later do not inherit. 0, or a number of errno; then both ends are -1. */
int tool_make_pipe(int ends[2]);

/* Checks that everything printed to standard output was written. */
tool_exit tool_flush_stdout(tool_error *error);

#endif
