/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products: which provider is the fastest for each shape, and CLBlast's parameters, which are one set for all
 * products of a type on a device. A process that has set parameters can't go back to CLBlast's own: the first process
 * measures what is in use, the second the candidates.
 */
#include "session.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CLBLAST "clblast"
#define SEED    3
#define RUNS    5
#define ROUNDS  9 /* of the proof */

/* The tables that are searched: the kernel for large products, and the size from which on it is used. */
static const char *const tables[] = {"clblast-xgemm", "clblast-routine"};

/* Starting points of the search on an unknown device. */
static const char *start_of(clmgk_device_class device_class)
{
    return device_class == CLMGK_DEVICE_GPU
               ? "GEMMK=0,KREG=1,KWG=16,KWI=2,MDIMA=8,MDIMC=8,MWG=64,NDIMB=8,NDIMC=8,NWG=64,SA=1,SB=1,STRM=0,STRN=0,"
                 "VWM=4,VWN=4,XGEMM_MIN_INDIRECT_SIZE=192"
               : "GEMMK=1,KREG=1,KWG=1,KWI=1,MDIMA=2,MDIMC=2,MWG=32,NDIMB=4,NDIMC=4,NWG=32,SA=0,SB=0,STRM=0,STRN=0,"
                 "VWM=8,VWN=1,XGEMM_MIN_INDIRECT_SIZE=32";
}

typedef struct clblast_search {
    session *base;
    point_space kernel; /* the first table */
    point_space points; /* all tables */
    tune_space space;
    tune_search *search;
    int number;
    double before_ms; /* geometric mean over the products, with what is in use */
    point best;
    double best_ratio;
} clblast_search;

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* Geometric mean over all products, with B transposed as layers mostly have it; not positive: one failed, the last that
 * was asked for. */
static tool_exit time_all(session *s, size_t child, const char *parameters, int runs, double *ms, tool_error *error)
{
    double logs = 0;
    for (size_t i = 0; i < s->options->product_count; i++) {
        tool_product shape = s->options->products[i];
        shape.transpose_b = true;
        TOOL_TRY(session_time_product(s, child, session_product_job(&shape, CLBLAST, parameters, runs), ms, error));
        if (*ms <= 0)
            return TOOL_DONE;
        logs += log(*ms);
    }
    *ms = exp(logs / (double)s->options->product_count);
    return TOOL_DONE;
}

/* ---- CLBlast's parameters ---------------------------------------------------------------------------------------- */

static bool is_legal(void *user, const int32_t *values)
{
    const clblast_search *c = user;
    return clmgk_tunable_check(tables[0], session_point_text(&c->kernel, values, NULL).text, NULL) == CLMGK_OK;
}

static tool_exit make_space(clblast_search *c, tool_error *error)
{
    TOOL_TRY(session_add_tunables(tables[0], &c->kernel, error));
    for (size_t t = 0; t < TOOL_COUNT(tables); t++)
        TOOL_TRY(session_add_tunables(tables[t], &c->points, error));
    c->space = (tune_space){CLBLAST, c->points.parameters, c->points.count, is_legal, c};
    c->search = tune_search_create(&c->space, 1, SEED, c->base->options->random ? TUNE_RANDOM : TUNE_NEIGHBOURS);
    return tool_check_memory(c->search, "the search", error);
}

/* Tells the search a ratio, which is not positive for values that failed, and keeps the best. */
static tool_exit tell(clblast_search *c, const int32_t *values, double ratio, tool_error *error)
{
    if (ratio > 0 && ratio < c->best_ratio) {
        c->best_ratio = ratio;
        memcpy(c->best, values, sizeof(c->best));
    }
    return tune_search_tell(c->search, c->number, 0, values, ratio > 0 ? 1e-3 * ratio * c->before_ms : -1)
               ? TOOL_DONE
               : tool_fail_memory(error, "a measurement");
}

static tool_exit try_values(clblast_search *c, const int32_t *values, tool_error *error)
{
    session *const s = c->base;
    const point_text list = session_point_text(&c->points, values, NULL);
    double ms = -1;
    session_say(s, CLBLAST, "measuring parameters of its kernels");
    TOOL_TRY(time_all(s, 1, list.text, CANDIDATE_RUNS, &ms, error));
    double ratio = ms > 0 ? ms / c->before_ms : -1;
    if (ms <= 0)
        session_count_failure(s, s->reply.why);
    if (ratio > 0 && ratio < c->best_ratio) {
        bool right = false;
        TOOL_TRY(session_check_product(s, 1, &s->options->products[0], CLBLAST, list.text, &right, error));
        if (!right)
            ratio = -1;
    }
    s->report->counts.tried++;
    s->report->clblast.tried++;
    TOOL_TRY(tell(c, values, ratio, error));
    return tune_history_add(
        s->history, json_pack("{s:s, s:s, s:f}", "case", CLBLAST, "parameters", list.text, "ratio", ratio), error);
}

/* What an earlier run measured. */
static tool_exit recall(clblast_search *c, tool_error *error)
{
    const session *s = c->base;
    const json_t *record = NULL;
    size_t i = 0;
    json_array_foreach(tune_history_records(s->history), i, record)
    {
        point values = {0};
        if (strcmp(session_text(record, "case"), CLBLAST) == 0 && !json_object_get(record, "done") &&
            session_read_point(&c->points, session_text(record, "parameters"), values))
            TOOL_TRY(tell(c, values, session_number(record, "ratio"), error));
    }
    return TOOL_DONE;
}

/* In turn: what is in use, in the first process; the best candidate in the second. */
static tool_exit prove(clblast_search *c, const char *parameters, bool *kept, tool_error *error)
{
    ratio_list ratios = {.count = 0};
    for (int round = 0; round < ROUNDS; round++) {
        double before = -1, after = -1;
        TOOL_TRY(time_all(c->base, 0, NULL, 1, &before, error));
        TOOL_TRY(time_all(c->base, 1, parameters, 1, &after, error));
        if (before > 0 && after > 0)
            session_add_ratio(&ratios, after / before);
    }
    *kept = session_beats_default(&ratios, &c->base->report->clblast.ratio);
    return TOOL_DONE;
}

static tool_exit store_clblast(session *s, const char *parameters, double before_ms, tool_error *error)
{
    const clmgk_tuned tuned = {.choice = CLBLAST,
                               .parameters = parameters,
                               .time_ms = s->report->clblast.ratio * before_ms,
                               .default_ms = before_ms};
    return tool_check_library(
        clmgk_gemm_tuning_store_device(s->device.library, NULL, CLMGK_DTYPE_F32, &tuned, &error->library), error);
}

static tool_exit settle(clblast_search *c, bool finished, tool_error *error)
{
    session *const s = c->base;
    tune_clblast *const result = &s->report->clblast;
    bool kept = c->best_ratio < 1 - LEAST_CONFIRMED;
    result->ratio = 1;
    snprintf(result->parameters, sizeof(result->parameters), "%s", session_point_text(&c->points, c->best, NULL).text);
    if (kept)
        TOOL_TRY(prove(c, result->parameters, &kept, error));
    result->outcome = kept ? TUNE_FASTER : TUNE_DEFAULT;
    if (!kept) {
        result->ratio = 1;
        result->parameters[0] = '\0';
    } else {
        TOOL_TRY(store_clblast(s, result->parameters, c->before_ms, error));
    }
    return tune_history_add(s->history,
                            json_pack("{s:b, s:b, s:s, s:b, s:s, s:f}", "done", 1, "finished", (int)finished, "case",
                                      CLBLAST, "faster", (int)kept, "parameters", result->parameters, "ratio",
                                      result->ratio),
                            error);
}

static tool_exit search_values(clblast_search *c, const char *used, double end_ms, tool_error *error)
{
    point start = {0};
    const int32_t *defaults[] = {start};
    const tune_case position = {.default_space = 0, .defaults = defaults};
    const bool known = session_read_point(&c->points, used, start);
    if (!known && !session_read_point(&c->points, start_of(c->base->report->device.device_class), start))
        return tool_fail(error, TOOL_SYSTEM_ERROR, "CLBlast's tables are not those that this program knows");
    c->best_ratio = 1;
    c->number = tune_search_begin(c->search, &position);
    if (c->number < 0)
        return tool_fail_memory(error, "a case of the search");
    TOOL_TRY(recall(c, error));
    if (known)
        TOOL_TRY(tell(c, start, 1, error));
    bool finished = false;
    while (tool_now_ms() < end_ms && !finished) {
        size_t space = 0;
        point values = {0};
        finished = tune_search_next(c->search, c->number, &space, values) != TUNE_MEASURE;
        if (!finished)
            TOOL_TRY(try_values(c, values, error));
    }
    return settle(c, finished, error);
}

static tool_exit tune_clblast_values(session *s, double end_ms, tool_error *error)
{
    clblast_search c = {.base = s};
    char used[512];
    tool_exit status = TOOL_DONE;
    const json_t *done = session_find_done(s, CLBLAST);
    if (done && json_is_true(json_object_get(done, "finished"))) {
        s->report->clblast.outcome =
            json_is_true(json_object_get(done, "faster")) ? TUNE_KNOWN_FASTER : TUNE_KNOWN_DEFAULT;
        s->report->clblast.ratio = session_number(done, "ratio");
        snprintf(s->report->clblast.parameters, sizeof(s->report->clblast.parameters), "%s",
                 session_text(done, "parameters"));
        return TOOL_DONE;
    }
    if (tool_now_ms() >= end_ms)
        return TOOL_DONE;
    TOOL_TRY(time_all(s, 0, NULL, RUNS, &c.before_ms, error));
    snprintf(used, sizeof(used), "%s", session_text(s->reply.answer, "parameters"));
    if (c.before_ms <= 0) {
        s->report->clblast.outcome = TUNE_REFUSED;
        return TOOL_DONE;
    }
    TOOL_TRY_GOTO(status, make_space(&c, error), done);
    status = search_values(&c, used, end_ms, error);
done:
    tune_search_free(c.search);
    return status;
}

/* ---- providers -------------------------------------------------------------------------------------------- */

/* Providers that can multiply the products' type on the device, and do it right. */
static tool_exit list_providers(session *s, tune_product *product, tool_error *error)
{
    const tool_product *const type = &s->options->products[0];
    const char *name = clmgk_gemm_provider(0);
    for (size_t i = 0; name && product->provider_count < TUNE_MAX_PROVIDERS; name = clmgk_gemm_provider(++i)) {
        clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
        TOOL_TRY(tool_check_library(clmgk_gemm_provider_state(s->report->device.device_id, i, &info, &error->library),
                                    error));
        bool right = false;
        if ((info.dtypes & 1U << (unsigned)type->dtype) == 0)
            continue;
        session_say(s, name, "checking products against double precision");
        TOOL_TRY(session_check_product(s, 0, type, name, NULL, &right, error));
        if (right)
            product->provider[product->provider_count++].name = name;
    }
    return TOOL_DONE;
}

static bool is_units(const char *provider)
{
    return strcmp(provider, UNITS_PROVIDER) == 0;
}

static tool_exit store_choice(const session *s, const tune_product *product, const char *cache_dir, tool_error *error)
{
    const clmgk_gemm_desc desc = tool_product_desc(&product->shape);
    const double ms = product->provider[product->chosen].ms;
    const char *const name = product->provider[product->chosen].name;
    const clmgk_tuned tuned = {.choice = name,
                               .parameters = is_units(name) ? product->parameters : NULL,
                               .time_ms = ms,
                               .default_ms = ms / product->ratio};
    return tool_check_library(clmgk_gemm_tuning_store(s->device.library, cache_dir, &desc, &tuned, &error->library),
                              error);
}

/* Whether a plan that finds the candidate in the cache by itself is faster than the first provider, in turn.
 * `first_ms`: of that, with its own parameters. */
static tool_exit prove_provider(session *s, tune_product *product, size_t first, double first_ms, size_t candidate,
                                bool *kept, tool_error *error)
{
    const char *const parameters = is_units(product->provider[first].name) ? "" : NULL;
    const bool has_parameters = is_units(product->provider[candidate].name) && product->parameters[0] != '\0';
    ratio_list ratios = {.count = 0};
    bool reached = true;
    product->chosen = candidate;
    product->ratio = product->provider[candidate].ms / first_ms;
    TOOL_TRY(store_choice(s, product, s->staging, error));
    for (int round = 0; round < ROUNDS; round++) {
        double before = -1, after = -1;
        TOOL_TRY(session_time_product(
            s, 0, session_product_job(&product->shape, product->provider[first].name, parameters, 1), &before, error));
        json_t *staged = session_product_job(&product->shape, NULL, NULL, 1);
        json_object_set_new(staged, "tuning_dir", json_sprintf("%s/tuning", s->staging));
        TOOL_TRY(session_time_product(s, 0, staged, &after, error));
        reached = reached && strcmp(session_text(s->reply.answer, "provider"), product->provider[candidate].name) == 0;
        if (has_parameters)
            reached = reached && strcmp(session_text(s->reply.answer, "parameters"), product->parameters) == 0;
        if (before > 0 && after > 0)
            session_add_ratio(&ratios, after / before);
    }
    *kept = reached && session_beats_default(&ratios, &product->ratio);
    return TOOL_DONE;
}

/* The time of a provider: as plans find it, or of matrix units with the fastest parameters; *own_ms: with its own. */
static tool_exit time_provider(session *s, tune_product *product, size_t provider, units_search *units, double end_ms,
                               double *own_ms, tool_error *error)
{
    double *const ms = &product->provider[provider].ms;
    const char *const name = product->provider[provider].name;
    session_say(s, tool_product_name(&product->shape).text, name);
    if (is_units(name))
        return units_search_product(units, product, end_ms, ms, own_ms, error);
    TOOL_TRY(session_time_product(s, 0, session_product_job(&product->shape, name, NULL, CANDIDATE_RUNS), ms, error));
    *own_ms = *ms;
    return TOOL_DONE;
}

/* One run of each; then the fastest against the first that can. */
static tool_exit compare_providers(session *s, tune_product *product, units_search *units, double end_ms,
                                   tool_error *error)
{
    size_t first = SIZE_MAX, fastest = SIZE_MAX;
    double first_ms = 0;
    bool kept = false;
    for (size_t p = 0; p < product->provider_count; p++) {
        double *const ms = &product->provider[p].ms;
        double own_ms = 0;
        TOOL_TRY(time_provider(s, product, p, units, end_ms, &own_ms, error));
        if (*ms > 0 && first == SIZE_MAX) {
            first = p;
            first_ms = own_ms;
        }
        if (*ms > 0 && (fastest == SIZE_MAX || *ms < product->provider[fastest].ms))
            fastest = p;
    }
    if (first == SIZE_MAX)
        return TOOL_DONE;
    product->measured = true;
    product->ratio = 1;
    if (product->provider[fastest].ms < (1 - LEAST_CONFIRMED) * first_ms)
        TOOL_TRY(prove_provider(s, product, first, first_ms, fastest, &kept, error));
    if (!kept) {
        product->chosen = first;
        product->provider[first].ms = first_ms;
        product->parameters[0] = '\0';
        product->ratio = 1;
    }
    return store_choice(s, product, NULL, error);
}

static void announce(session *s, const tune_product *product)
{
    if (!product->measured)
        return;
    fprintf(stderr, "clmgk-tune: product %s: %s, %.3f ms\n", tool_product_name(&product->shape).text,
            product->provider[product->chosen].name, product->provider[product->chosen].ms);
    s->said_ms = tool_now_ms();
}

/* The shapes in all layouts. */
static void list_products(session *s, const tune_product *none)
{
    for (size_t i = 0; i < TUNE_LAYOUTS * s->options->product_count; i++) {
        tune_product *product = &s->report->products[s->report->product_count++];
        *product = *none;
        product->shape = s->options->products[i / TUNE_LAYOUTS];
        product->shape.transpose_b = i % TUNE_LAYOUTS == 1;
        product->shape.transpose_a = i % TUNE_LAYOUTS == 2;
    }
}

static bool has_provider(const tune_product *product, const char *name)
{
    for (size_t p = 0; p < product->provider_count; p++)
        if (strcmp(product->provider[p].name, name) == 0)
            return true;
    return false;
}

/* The products in turn, each with an equal share of the time that is left for it. */
static tool_exit compare_products(session *s, units_search *units, double end_ms, tool_error *error)
{
    const size_t count = s->report->product_count;
    for (size_t i = 0; i < count && tool_now_ms() < end_ms; i++) {
        const double now = tool_now_ms();
        TOOL_TRY(
            compare_providers(s, &s->report->products[i], units, now + (end_ms - now) / (double)(count - i), error));
        announce(s, &s->report->products[i]);
    }
    return TOOL_DONE;
}

/* The providers come first: CLBlast's parameters, one set for all f32 products, can use up any time. Matrix units,
 * whose parameters are searched for each product, leave it half of the time. */
tool_exit tune_products(session *s, double end_ms, tool_error *error)
{
    tune_product none = {.measured = false};
    units_search *units = NULL;
    if (s->options->product_count == 0)
        return TOOL_DONE;
    TOOL_TRY(list_providers(s, &none, error));
    list_products(s, &none);
    const bool clblast = s->options->products[0].dtype == CLMGK_DTYPE_F32 && has_provider(&none, CLBLAST);
    const bool has_units = has_provider(&none, UNITS_PROVIDER);
    const double now = tool_now_ms(), half_ms = now + (end_ms - now) / 2;
    if (has_units)
        TOOL_TRY(units_search_create(s, &units, error));
    const tool_exit status = compare_products(s, units, has_units && clblast ? half_ms : end_ms, error);
    units_search_free(units);
    TOOL_TRY(status);
    return clblast ? tune_clblast_values(s, end_ms, error) : TOOL_DONE;
}
