/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of products by matrix units, one search for each product. Its candidates and the defaults run in the same
 * process, because a plan's parameters are its own. */
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TABLE "gemm-matrix"
#define SEED  5

struct units_search {
    session *base;
    point_space points;
    tune_space space;
    tune_search *search;
};

/* Units that a device lacks are not emulated. */
static bool is_legal(void *user, const int32_t *values)
{
    const units_search *u = user;
    for (size_t i = 0; i < u->points.count; i++)
        if (strcmp(u->points.parameters[i].name, "unit") == 0 && values[i] == 0)
            return false;
    return clmgk_tunable_check(TABLE, session_point_text(&u->points, values, NULL).text, NULL) == CLMGK_OK;
}

tool_exit units_search_create(session *s, units_search **out, tool_error *error)
{
    units_search *const u = calloc(1, sizeof(*u));
    TOOL_TRY(tool_check_memory(u, "the search", error));
    *out = u;
    u->base = s;
    TOOL_TRY(session_add_tunables(TABLE, &u->points, error));
    u->space = (tune_space){UNITS_PROVIDER, u->points.parameters, u->points.count, is_legal, u};
    u->search = tune_search_create(&u->space, 1, SEED, s->options->random ? TUNE_RANDOM : TUNE_NEIGHBOURS);
    return tool_check_memory(u->search, "the search", error);
}

void units_search_free(units_search *u)
{
    if (!u)
        return;
    tune_search_free(u->search);
    free(u);
}

/* A product's search. */
typedef struct units_case {
    units_search *units;
    tune_product *product;
    char key[160]; /* of the history */
    int number;
    double best_ms;
} units_case;

/* Tells the search a time, which is not positive for values that failed, and keeps the best. */
static tool_exit tell(units_case *c, const int32_t *values, double ms, tool_error *error)
{
    if (ms > 0 && ms < c->best_ms) {
        c->best_ms = ms;
        snprintf(c->product->parameters, sizeof(c->product->parameters), "%s",
                 session_point_text(&c->units->points, values, NULL).text);
    }
    return tune_search_tell(c->units->search, c->number, 0, values, ms > 0 ? 1e-3 * ms : -1)
               ? TOOL_DONE
               : tool_fail_memory(error, "a measurement");
}

/* What an earlier run measured. */
static tool_exit recall(units_case *c, tool_error *error)
{
    const json_t *record = NULL;
    size_t i = 0;
    json_array_foreach(tune_history_records(c->units->base->history), i, record)
    {
        point values = {0};
        if (strcmp(session_text(record, "case"), c->key) == 0 &&
            session_read_point(&c->units->points, session_text(record, "parameters"), values))
            TOOL_TRY(tell(c, values, session_number(record, "ms"), error));
    }
    return TOOL_DONE;
}

static tool_exit try_values(units_case *c, const int32_t *values, tool_error *error)
{
    session *const s = c->units->base;
    const point_text list = session_point_text(&c->units->points, values, NULL);
    double ms = -1;
    session_say(s, c->key, "measuring parameters");
    TOOL_TRY(session_time_product(
        s, 0, session_product_job(&c->product->shape, UNITS_PROVIDER, list.text, CANDIDATE_RUNS), &ms, error));
    if (ms <= 0)
        session_count_failure(s, s->reply.why);
    if (ms > 0 && ms < c->best_ms) {
        bool right = false;
        TOOL_TRY(session_check_product(s, 0, &c->product->shape, UNITS_PROVIDER, list.text, &right, error));
        ms = right ? ms : -1;
    }
    s->report->counts.tried++;
    c->product->tried++;
    TOOL_TRY(tell(c, values, ms, error));
    return tune_history_add(s->history, json_pack("{s:s, s:s, s:f}", "case", c->key, "parameters", list.text, "ms", ms),
                            error);
}

/* Begins the case with the plan's own parameters and their time. */
static tool_exit begin(units_case *c, const char *defaults, tool_error *error)
{
    const tool_product *const shape = &c->product->shape;
    point start = {0};
    const int32_t *const list[] = {start};
    const tune_case position = {.axes = {log2((double)shape->m), log2((double)shape->n), log2((double)shape->k),
                                         shape->transpose_a, shape->transpose_b},
                                .default_space = 0,
                                .defaults = list};
    if (!session_read_point(&c->units->points, defaults, start))
        return tool_fail(error, TOOL_SYSTEM_ERROR, "a plan's parameters are not those of the table " TABLE);
    c->number = tune_search_begin(c->units->search, &position);
    if (c->number < 0)
        return tool_fail_memory(error, "a case of the search");
    TOOL_TRY(recall(c, error));
    return tune_search_tell(c->units->search, c->number, 0, start, 1e-3 * c->best_ms)
               ? TOOL_DONE
               : tool_fail_memory(error, "a measurement");
}

tool_exit units_search_product(units_search *u, tune_product *product, double end_ms, double *ms, double *default_ms,
                               tool_error *error)
{
    session *const s = u->base;
    units_case c = {.units = u, .product = product};
    char defaults[512];
    snprintf(c.key, sizeof(c.key), UNITS_PROVIDER " %s", tool_product_name(&product->shape).text);
    product->parameters[0] = '\0';
    TOOL_TRY(session_time_product(s, 0, session_product_job(&product->shape, UNITS_PROVIDER, "", CANDIDATE_RUNS), ms,
                                  error));
    *default_ms = *ms;
    if (*ms <= 0)
        return TOOL_DONE;
    snprintf(defaults, sizeof(defaults), "%s", session_text(s->reply.answer, "parameters"));
    c.best_ms = *ms;
    TOOL_TRY(begin(&c, defaults, error));
    for (bool more = true; more && tool_now_ms() < end_ms;) {
        size_t space = 0;
        point values = {0};
        more = tune_search_next(u->search, c.number, &space, values) == TUNE_MEASURE;
        if (more)
            TOOL_TRY(try_values(&c, values, error));
    }
    *ms = c.best_ms;
    return TOOL_DONE;
}
