/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a device's session share: attention.c and its kin, products.c and units.c. */
#ifndef TUNE_SESSION_H
#define TUNE_SESSION_H

#include "search.h"
#include "tune.h"

#define MAX_COMPILERS 4 /* processes that compile at the same time */

/* The latest answer, or why there is none. */
typedef struct session_reply {
    bool ok;
    json_t *answer;
    const char *why; /* "hung", "died", "refused" */
    char message[256];
} session_reply;

typedef struct session {
    const tune_options *options;
    const char *folder;
    char staging[1024]; /* the folder of the copy of the cache in which candidates are put to the proof */
    tune_child *children[MAX_COMPILERS]; /* the first measures, too */
    size_t compilers;
    session_reply reply;
    tune_history *history;
    tool_device device; /* for the cache's entries: nothing is run on it */
    tune_report *report;
    double start_ms;
    double said_ms; /* when the last line of progress was printed */
} session;

double session_spent_s(const session *s);

/* Prints the step at hand on standard error, if the last such line is some seconds old. */
void session_say(session *s, const char *subject, const char *step);

/* Sends a job (its reference is taken; NULL is out of memory) to a process, and receives the answer into s->reply.
 * `more_ms` are added to the limit of candidates. */
tool_exit session_ask(session *s, size_t child, json_t *job, double more_ms, tool_error *error);
tool_exit session_receive(session *s, size_t child, double more_ms, tool_error *error);

/* A member of an object; "" or 0 where it has none. */
const char *session_text(const json_t *object, const char *key);
double session_number(const json_t *object, const char *key);

json_int_t session_clamp(double number, int low, int high);

/* Parameters; a point has a value of each. */
typedef int32_t point[TUNE_MOST_PARAMETERS];
typedef struct point_space {
    clmgk_tunable tunables[TUNE_MOST_PARAMETERS];
    tune_parameter parameters[TUNE_MOST_PARAMETERS];
    size_t count;
} point_space;

/* Appends the tunables of a table. */
tool_exit session_add_tunables(const char *table, point_space *space, tool_error *error);

/* "name=value,..." of those that differ from `defaults` (NULL: all). */
typedef struct point_text {
    char text[512];
} point_text;
point_text session_point_text(const point_space *space, const int32_t *values, const int32_t *defaults);

/* The values that such a text names; false where one is missing. */
bool session_read_point(const point_space *space, const char *text, int32_t *values);

/* Counts why a candidate lost. */
void session_count_failure(session *s, const char *why);

/* The last record of the history that tells how the work on `key` ended; NULL: none. */
const json_t *session_find_done(const session *s, const char *key);

/* Times of a candidate over those of the defaults; at most MAX_CONFIRM are kept. */
#define MIN_CONFIRM     5
#define MAX_CONFIRM     15
#define LEAST_CONFIRMED CLMGK_TUNING_LEAST_GAIN /* a gain that is kept */
typedef struct ratio_list {
    double ratio[MAX_CONFIRM];
    size_t count;
} ratio_list;
void session_add_ratio(ratio_list *ratios, double ratio);

/* Whether the median of at least MIN_CONFIRM ratios lies below 1 beyond noise; *median is it. */
bool session_beats_default(const ratio_list *ratios, double *median);

/* A job for a product with so many runs. `parameters`: NULL: as plans find them; else "" for the provider's own. Time
 * in a process; not positive: it failed, and s->reply tells why. */
#define CANDIDATE_RUNS 3
json_t *session_product_job(const tool_product *shape, const char *provider, const char *parameters, int runs);
tool_exit session_time_product(session *s, size_t child, json_t *job, double *ms, tool_error *error);

/* Whether a provider's products with these parameters (NULL: as plans find them) are right. */
tool_exit session_check_product(session *s, size_t child, const tool_product *type, const char *provider,
                                const char *parameters, bool *right, tool_error *error);

/* The search for parameters of products by matrix units, which learns from all products. */
#define UNITS_PROVIDER "matrix"
typedef struct units_search units_search;
tool_exit units_search_create(session *s, units_search **out, tool_error *error);
void units_search_free(units_search *search);

/* Searches for a product's parameters until `end_ms`: the fastest that give right results, in product->parameters, and
 * their time; the defaults' time in *default_ms. */
tool_exit units_search_product(units_search *search, tune_product *product, double end_ms, double *ms,
                               double *default_ms, tool_error *error);

/* The cases of attention; products of matrices. Both stop at the time `end_ms`. */
tool_exit tune_attention(session *s, double end_ms, tool_error *error);
tool_exit tune_products(session *s, double end_ms, tool_error *error);

#endif
