/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a device's session share: attention.c, products.c. */
#ifndef TUNE_SESSION_H
#define TUNE_SESSION_H

#include "search.h"
#include "tune.h"

#define MAX_COMPILERS 4 /* processes that compile at the same time */

typedef struct session {
    const tune_options *options;
    const char *folder;
    tune_child *children[MAX_COMPILERS]; /* the first measures, too */
    size_t compilers;
    tune_history *history;
    tool_device device; /* for the cache's entries: nothing is run on it */
    tune_report *report;
    double start_ms;
} session;

double session_spent_s(const session *s);

/* An answer, or why there is none. */
typedef struct said {
    bool ok;
    json_t *answer;
    char why[32]; /* "hung", "died", "refused" */
    char message[256];
} said;

/* Sends a job (its reference is taken; NULL is out of memory) to a process, and receives the answer (json_decref). A
 * limit of 0 is that of candidates; `more_ms` are added to it. */
tool_exit session_receive(const session *s, size_t child, double more_ms, said *reply, tool_error *error);
tool_exit session_ask(const session *s, json_t *job, double more_ms, said *reply, tool_error *error);

/* A member of an object; "" or 0 where it has none. */
const char *session_text(const json_t *object, const char *key);
double session_number(const json_t *object, const char *key);

/* Appends the tunables of a table to arrays of TUNE_MOST_PARAMETERS, of which *count are filled. */
tool_exit session_list_tunables(const char *table, clmgk_tunable *tunables, tune_parameter *parameters, size_t *count,
                                tool_error *error);

/* "name=value,..." of those that differ from `defaults` (NULL: all). */
void session_print_point(const tune_parameter *parameters, size_t count, const int32_t *values, const int32_t *defaults,
                         char *text, size_t size);

/* The values that such a text names; false where one is missing. */
bool session_read_point(const tune_parameter *parameters, size_t count, const char *text, int32_t *values);

/* Counts why a candidate lost. */
void session_count_failure(session *s, const char *why);

/* The last record of the history that tells how the work on `key` ended; NULL: none. */
const json_t *session_find_done(const session *s, const char *key);

/* The folder of the copy of the cache in which candidates are put to the proof. */
void session_staging(const session *s, char *path, size_t size);

/* Whether the median of ratios to the default lies below 1 beyond noise; *median is it. At least MIN_CONFIRM of them,
 * at most MAX_CONFIRM are looked at. */
#define MIN_CONFIRM     5
#define MAX_CONFIRM     15
#define LEAST_CONFIRMED CLMGK_TUNING_LEAST_GAIN /* a gain that is kept */
bool session_beats_default(const json_t *ratios, double *median);

/* The cases of attention; products of matrices. Both stop at the time `end_ms`. */
tool_exit tune_attention(session *s, double end_ms, tool_error *error);
tool_exit tune_products(session *s, double end_ms, tool_error *error);

#endif
