/* SPDX-License-Identifier: Apache-2.0 */
/* The search through all cases of attention: what to measure, what to believe, what to keep. */
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ENGINES          2
#define MAX_SETS         2 /* those of the mixture and of the admixture family */
#define SEED             1
#define LEAST_RUNS       6     /* of a case: without time for so many it is not begun */
#define LEAST_SHARE_S    1.0   /* of a case, however little time is left for each */
#define STOP_RATIO       1.15  /* slower than that by the first pair of runs: no second */
#define OTHER_STOP_RATIO 1.5   /* the other engine is looked at more closely below that */
#define FEW_QUERIES      32    /* fewer say nothing about the other engine */
#define DEFAULT_MORE_MS  120e3 /* the defaults are no candidates: without them a case can't be measured */
#define LIMIT_RUNS       200   /* of the defaults: what a candidate may take beside compiling */
#define OTHER_LIMIT_S    15    /* the other engine, compiling included: it is a guess */
#define PAIR_MS          60.0  /* runs of a candidate */
#define MAX_PAIRS        5
#define CONFIRM_MS       1500.0 /* of the winner */

static const clmgk_engine engines[ENGINES] = {CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT};

/* The tunables of an engine in a family, as the search wants them. */
typedef struct engine_space {
    clmgk_tunable tunables[TUNE_MOST_PARAMETERS];
    tune_parameter parameters[TUNE_MOST_PARAMETERS];
    size_t count;
    const char *name, *table; /* of the engine, of its tunables */
    clmgk_context *library;
    const bench_case *one; /* whose points are asked for; NULL: any */
} engine_space;

typedef int32_t point[TUNE_MOST_PARAMETERS];

/* The best that was seen of a case. */
typedef struct incumbent {
    size_t space;
    point values;
    double ratio; /* to the defaults */
} incumbent;

/* Kernels that have the same tunables: what is learnt of one says something about the others. */
typedef struct kernel_set {
    engine_space spaces[ENGINES];
    tune_space tables[ENGINES]; /* the same for the search */
    tune_search *search[BENCH_PASSES];
    double points; /* legal ones of all spaces */
    bool other_looked_at[BENCH_PASSES], other_near[BENCH_PASSES];
} kernel_set;

typedef struct attention {
    session *base;
    kernel_set sets[MAX_SETS];
    size_t set_count;
    double ms_per_flop; /* of the latest case */
    bench_group *groups;
    struct work *cases; /* one for each result */
} attention;

/* A case at work. */
typedef struct work {
    size_t group, index; /* as jobs name it */
    const bench_case *one;
    kernel_set *set; /* of its variant */
    tune_result *result;
    size_t own; /* space of the engine that is used without tuning */
    point defaults[ENGINES];
    bool available[ENGINES];
    int number;    /* of the search; -1: not begun */
    bool finished; /* the search has ended */
    bool measured; /* by this run */
    double default_ms;
    double more_ms; /* than a candidate's limit: for its runs */
    incumbent best;
    double end_ms;
} work;

/* ---- points and texts -------------------------------------------------------------------------------------------- */

static void print_point(const engine_space *space, const int32_t *values, const int32_t *defaults, char *text,
                        size_t size)
{
    session_print_point(space->parameters, space->count, values, defaults, text, size);
}

static bool read_point(const engine_space *space, const char *text, int32_t *values)
{
    return session_read_point(space->parameters, space->count, text, values);
}

static clmgk_tuned_pass pass_of(const bench_case *one)
{
    return one->pass == BENCH_BACKWARD ? CLMGK_TUNED_BACKWARD : CLMGK_TUNED_FORWARD;
}

static bool is_legal(void *user, const int32_t *values)
{
    const engine_space *space = user;
    char text[512];
    print_point(space, values, NULL, text, sizeof(text));
    if (!space->one)
        return clmgk_tunable_check(space->table, text, NULL) == CLMGK_OK;
    const clmgk_tuned tuned = {.choice = space->name, .parameters = text};
    return clmgk_tuning_check(space->library, &space->one->desc, pass_of(space->one), &tuned, NULL) == CLMGK_OK;
}

static size_t space_of(const char *engine)
{
    size_t i = 0;
    while (i + 1 < ENGINES && (!engine || strcmp(engine, clmgk_engine_name(engines[i])) != 0))
        i++;
    return i;
}

static tool_exit make_set(const session *base, clmgk_variant variant, kernel_set *made, tool_error *error)
{
    for (size_t e = 0; e < ENGINES; e++) {
        engine_space *space = &made->spaces[e];
        space->name = clmgk_engine_name(engines[e]);
        space->table = clmgk_tunable_table_of(variant, engines[e]);
        space->library = base->device.library;
        TOOL_TRY(session_list_tunables(space->table, space->tunables, space->parameters, &space->count, error));
        made->tables[e] = (tune_space){space->name, space->parameters, space->count, is_legal, space};
    }
    for (int pass = 0; pass < BENCH_PASSES; pass++) {
        made->search[pass] = tune_search_create(made->tables, ENGINES, SEED + (uint64_t)pass,
                                                base->options->random ? TUNE_RANDOM : TUNE_NEIGHBOURS);
        if (!made->search[pass])
            return tool_fail_memory(error, "the search");
    }
    for (size_t e = 0; e < ENGINES; e++)
        made->points += tune_search_space_size(made->search[0], e);
    return TOOL_DONE;
}

/* The kernels of a case's variant. */
static tool_exit take_set(attention *s, work *w, tool_error *error)
{
    const clmgk_variant variant = w->one->desc.variant;
    const char *table = clmgk_tunable_table_of(variant, engines[0]);
    for (size_t i = 0; i < s->set_count && !w->set; i++) {
        if (strcmp(s->sets[i].spaces[0].table, table) == 0)
            w->set = &s->sets[i];
    }
    if (!w->set && s->set_count == MAX_SETS)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "table %s: more tables than this program knows", table);
    if (!w->set) {
        w->set = &s->sets[s->set_count++];
        TOOL_TRY(make_set(s->base, variant, w->set, error));
    }
    w->result->space = w->set->points;
    return TOOL_DONE;
}

/* ---- asking the process ------------------------------------------------------------------------------------------ */

/* `extra` is merged into the job; its reference is taken. */
static tool_exit send_job(const attention *s, size_t child, const work *w, const char *job, json_t *extra,
                          tool_error *error)
{
    json_t *object =
        json_pack("{s:s, s:I, s:I}", "job", job, "group", (json_int_t)w->group, "case", (json_int_t)w->index);
    if (object && extra && json_object_update(object, extra) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(extra);
    return tune_child_send(s->base->children[child], object, error);
}

static tool_exit ask(const attention *s, const work *w, const char *job, json_t *extra, said *reply, tool_error *error)
{
    TOOL_TRY(send_job(s, 0, w, job, extra, error));
    return session_receive(s->base, 0, w->more_ms, reply, error);
}

static json_t *candidate_json(const engine_space *space, const int32_t *values)
{
    char text[512] = "";
    if (values)
        print_point(space, values, NULL, text, sizeof(text));
    return json_pack("{s:s, s:s}", "engine", space->name, "parameters", text);
}

/* Ratio to the defaults' time; not positive: it failed. */
static bool tell(const work *w, size_t space, const int32_t *values, double ratio)
{
    return tune_search_tell(w->set->search[w->one->pass], w->number, space, values,
                            ratio > 0 ? 1e-3 * ratio * w->default_ms : -1);
}

/* ---- history ----------------------------------------------------------------------------------------------------- */

static tool_exit remember(attention *s, const work *w, size_t space, const int32_t *values, double ratio,
                          const char *why, const char *message, tool_error *error)
{
    json_t *record = candidate_json(&w->set->spaces[space], values);
    if (record)
        json_object_update_new(record, json_pack("{s:s, s:o, s:s?, s:o}", "case", w->result->key, "ratio",
                                                 tool_json_number(ratio), "failed", why, "message",
                                                 why ? tool_json_text(message) : json_null()));
    return tune_history_add(s->base->history, record, error);
}

/* Tells the search what an earlier run measured of this case; the fastest is put to `best`. */
static bool recall(attention *s, const work *w, incumbent *best)
{
    *best = (incumbent){.ratio = 1};
    for (size_t i = 0; i < tune_history_count(s->base->history); i++) {
        const json_t *record = tune_history_record(s->base->history, i);
        point values;
        const size_t space = space_of(session_text(record, "engine"));
        if (strcmp(session_text(record, "case"), w->result->key) != 0 || json_object_get(record, "done") ||
            !w->available[space] || !read_point(&w->set->spaces[space], session_text(record, "parameters"), values))
            continue;
        const bool failed = json_is_string(json_object_get(record, "failed"));
        const double ratio = failed ? -1 : session_number(record, "ratio");
        if (!tell(w, space, values, ratio))
            return false;
        const size_t bytes = w->set->spaces[space].count * sizeof(*values);
        if (failed && best->space == space && memcmp(best->values, values, bytes) == 0)
            best->ratio = 1; /* it was measured first, and found wrong then */
        if (!failed && ratio < best->ratio) {
            *best = (incumbent){.space = space, .ratio = ratio};
            memcpy(best->values, values, bytes);
        }
    }
    return true;
}

static void take_done(const json_t *record, tune_result *result)
{
    result->outcome = json_is_true(json_object_get(record, "faster")) ? TUNE_KNOWN_FASTER : TUNE_KNOWN_DEFAULT;
    snprintf(result->engine, sizeof(result->engine), "%s", session_text(record, "engine"));
    snprintf(result->parameters, sizeof(result->parameters), "%s", session_text(record, "parameters"));
    result->default_ms = session_number(record, "default_ms");
    result->tuned_ms = session_number(record, "ms");
    result->ratio = session_number(record, "ratio");
}

static tool_exit remember_done(attention *s, const work *w, tool_error *error)
{
    const tune_result *result = w->result;
    char defaults[512] = "";
    if (w->available[w->own])
        print_point(&w->set->spaces[w->own], w->defaults[w->own], NULL, defaults, sizeof(defaults));
    return tune_history_add(s->base->history,
                            json_pack("{s:b, s:b, s:b, s:s, s:b, s:s, s:s, s:f, s:f, s:f, s:s, s:s}", "done", 1,
                                      "refused", (int)(result->outcome == TUNE_REFUSED), "finished", (int)w->finished,
                                      "case", result->key, "faster", (int)(result->outcome == TUNE_FASTER), "engine",
                                      result->engine, "parameters", result->parameters, "default_ms",
                                      result->default_ms, "ms", result->tuned_ms, "ratio", result->ratio, "own",
                                      w->set->spaces[w->own].name, "defaults", defaults),
                            error);
}

/* ---- measuring ----------------------------------------------------------------------------------------------------
 */

static json_int_t clamp(double number, int low, int high)
{
    return number < low ? low : number > high ? high : (json_int_t)number;
}

/* One candidate, in turn with the defaults. *ratio < 0: it failed. `values` NULL: the engine's defaults, which are put
 * to `seen` (may be NULL otherwise). */
static tool_exit measure(attention *s, work *w, size_t space, const int32_t *values, double stop, int32_t *seen,
                         double *ratio, tool_error *error)
{
    said reply = {.ok = false};
    json_t *extra = candidate_json(&w->set->spaces[space], values);
    if (extra)
        json_object_update_new(extra, json_pack("{s:I, s:f}", "pairs", clamp(PAIR_MS / w->default_ms, 2, MAX_PAIRS),
                                                "stop", stop * w->best.ratio));
    *ratio = -1;
    tool_exit status = ask(s, w, "measure", extra, &reply, error);
    if (status == TOOL_DONE && reply.ok) {
        *ratio = session_number(reply.answer, "ratio");
        s->base->report->counts.slow += json_is_true(json_object_get(reply.answer, "slow"));
        if (seen && !read_point(&w->set->spaces[space], session_text(reply.answer, "parameters"), seen))
            *ratio = -1;
    } else if (status == TOOL_DONE && !values && strcmp(reply.why, "hung") == 0) {
        s->base->report->counts.slow++; /* the other engine's defaults have less time */
    } else if (status == TOOL_DONE) {
        session_count_failure(s->base, reply.why);
    }
    s->base->report->counts.tried++;
    w->result->tried++;
    if (status == TOOL_DONE && values)
        status = remember(s, w, space, values, *ratio, reply.ok ? NULL : reply.why, reply.message, error);
    json_decref(reply.answer);
    return status;
}

/* The defaults: what all is compared with. False in *runs: the device can't. */
static tool_exit measure_default(attention *s, work *w, bool *runs, tool_error *error)
{
    said reply = {.ok = false};
    TOOL_TRY(ask(s, w, "default", NULL, &reply, error));
    *runs = reply.ok;
    if (reply.ok) {
        w->own = space_of(session_text(reply.answer, "engine"));
        w->available[w->own] =
            read_point(&w->set->spaces[w->own], session_text(reply.answer, "parameters"), w->defaults[w->own]);
        w->default_ms = session_number(reply.answer, "ms");
        w->more_ms = LIMIT_RUNS * w->default_ms;
        w->result->default_ms = w->result->tuned_ms = w->default_ms;
        s->ms_per_flop = w->default_ms / w->one->flops;
        snprintf(w->result->engine, sizeof(w->result->engine), "%s", w->set->spaces[w->own].name);
    } else {
        w->result->outcome = TUNE_REFUSED;
        snprintf(w->result->message, sizeof(w->result->message), "%s", reply.message);
    }
    json_decref(reply.answer);
    return TOOL_DONE;
}

/* Against the reference on awkward shapes, before a candidate may count as the best: a wrong one would mislead the
 * search, too. */
static tool_exit is_right(attention *s, work *w, size_t space, const int32_t *values, bool *right, tool_error *error)
{
    said reply = {.ok = false};
    TOOL_TRY(ask(s, w, "check", candidate_json(&w->set->spaces[space], values), &reply, error));
    *right = reply.ok && !json_is_true(json_object_get(reply.answer, "wrong"));
    tool_exit status = TOOL_DONE;
    if (!*right) {
        const char *why = reply.ok ? "wrong" : reply.why;
        session_count_failure(s->base, why);
        status = remember(s, w, space, values, -1, why,
                          reply.ok ? session_text(reply.answer, "message") : reply.message, error);
    }
    json_decref(reply.answer);
    return status;
}

/* The other engine, in the first case of a pass, and later ones if it was near there. */
static tool_exit look_at_other(attention *s, work *w, tool_error *error)
{
    const bench_pass pass = w->one->pass;
    const size_t other = 1 - w->own;
    double ratio = -1;
    if (w->one->desc.length < FEW_QUERIES || (w->set->other_looked_at[pass] && !w->set->other_near[pass]))
        return TOOL_DONE;
    const double more_ms = w->more_ms;
    w->more_ms += 1e3 * fmin(0, OTHER_LIMIT_S - s->base->options->candidate_s);
    TOOL_TRY(measure(s, w, other, NULL, OTHER_STOP_RATIO, w->defaults[other], &ratio, error));
    w->more_ms = more_ms;
    w->set->other_looked_at[pass] = true;
    w->set->other_near[pass] = ratio > 0 && ratio < OTHER_STOP_RATIO;
    w->available[other] = w->set->other_near[pass];
    bool right = true;
    if (w->available[other] && ratio < 1 - LEAST_CONFIRMED)
        TOOL_TRY(is_right(s, w, other, w->defaults[other], &right, error));
    w->available[other] = w->available[other] && right;
    if (w->available[other] && ratio < w->best.ratio) {
        w->best = (incumbent){.space = other, .ratio = ratio};
        memcpy(w->best.values, w->defaults[other], sizeof(point));
    }
    return TOOL_DONE;
}

/* ---- a case -------------------------------------------------------------------------------------------------------
 */

static double size_axis(int64_t size)
{
    return log2(fmax(1, (double)size));
}

/* Where a case lies: its kinds, and its sizes in factors of two. */
static void place_case(const clmgk_attention_desc *desc, double axes[TUNE_AXES])
{
    const double place[TUNE_AXES] = {(double)desc->variant,      (double)desc->dtype,
                                     desc->causal != 0,          size_axis(desc->components),
                                     size_axis(desc->head_size), size_axis(desc->length),
                                     size_axis(desc->length_k),  size_axis(desc->batch * desc->heads)};
    memcpy(axes, place, sizeof(place));
}

static tool_exit begin_search(work *w, tool_error *error)
{
    const int32_t *defaults[ENGINES];
    for (size_t e = 0; e < ENGINES; e++) {
        w->set->spaces[e].one = w->one;
        defaults[e] = w->available[e] ? w->defaults[e] : NULL;
    }
    tune_case one = {.default_space = w->own, .defaults = defaults};
    place_case(&w->one->desc, one.axes);
    w->number = tune_search_begin(w->set->search[w->one->pass], &one);
    if (w->number < 0)
        return tool_fail_memory(error, "a case of the search");
    if (!tune_search_tell(w->set->search[w->one->pass], w->number, w->own, w->defaults[w->own], 1e-3 * w->default_ms))
        return tool_fail_memory(error, "a measurement");
    return TOOL_DONE;
}

/* Candidates that are compiled at the same time, to be measured one after another. */
typedef struct batch_entry {
    size_t space;
    point values;
    bool failed;
} batch_entry;

typedef struct batch {
    size_t count;
    batch_entry candidate[MAX_COMPILERS];
} batch;

static tool_exit choose_batch(attention *s, work *w, batch *chosen, tool_error *error)
{
    chosen->count = 0;
    while (chosen->count < s->base->compilers) {
        batch_entry *const next = &chosen->candidate[chosen->count];
        const tune_proposal answer =
            tune_search_next(w->set->search[w->one->pass], w->number, &next->space, next->values);
        if (answer == TUNE_FAILED)
            return tool_fail_memory(error, "a proposal");
        if (answer != TUNE_MEASURE)
            break;
        next->failed = false;
        chosen->count++;
    }
    return TOOL_DONE;
}

static tool_exit fail_candidate(attention *s, work *w, size_t space, const int32_t *values, const char *why,
                                const char *message, tool_error *error)
{
    session_count_failure(s->base, why);
    s->base->report->counts.tried++;
    w->result->tried++;
    if (!tell(w, space, values, -1))
        return tool_fail_memory(error, "a measurement");
    return remember(s, w, space, values, -1, why, message, error);
}

static tool_exit compile_batch(attention *s, work *w, batch *chosen, tool_error *error)
{
    for (size_t i = 0; i < chosen->count; i++)
        TOOL_TRY(send_job(s, i, w, "compile",
                          candidate_json(&w->set->spaces[chosen->candidate[i].space], chosen->candidate[i].values),
                          error));
    for (size_t i = 0; i < chosen->count; i++) {
        said reply = {.ok = false};
        TOOL_TRY(session_receive(s->base, i, w->more_ms, &reply, error));
        chosen->candidate[i].failed = !reply.ok;
        tool_exit status = TOOL_DONE;
        if (!reply.ok)
            status = fail_candidate(s, w, chosen->candidate[i].space, chosen->candidate[i].values, reply.why,
                                    reply.message, error);
        json_decref(reply.answer);
        TOOL_TRY(status);
    }
    return TOOL_DONE;
}

/* What an earlier run left: its best was perhaps not checked. */
static tool_exit take_history(attention *s, work *w, tool_error *error)
{
    incumbent best;
    bool right = false;
    if (!recall(s, w, &best))
        return tool_fail_memory(error, "a measurement");
    if (best.ratio >= w->best.ratio)
        return TOOL_DONE;
    TOOL_TRY(is_right(s, w, best.space, best.values, &right, error));
    if (right)
        w->best = best;
    else if (!tell(w, best.space, best.values, -1))
        return tool_fail_memory(error, "a measurement");
    return TOOL_DONE;
}

/* One candidate's runs; the best so far that is right stays. */
static tool_exit try_candidate(attention *s, work *w, size_t space, const int32_t *values, tool_error *error)
{
    double ratio = -1;
    bool right = true;
    TOOL_TRY(measure(s, w, space, values, STOP_RATIO, NULL, &ratio, error));
    const bool better = ratio > 0 && ratio < w->best.ratio;
    if (better && ratio < 1 - LEAST_CONFIRMED)
        TOOL_TRY(is_right(s, w, space, values, &right, error));
    if (better && right) {
        w->best = (incumbent){.space = space, .ratio = ratio};
        memcpy(w->best.values, values, sizeof(point));
    }
    return tell(w, space, values, right ? ratio : -1) ? TOOL_DONE : tool_fail_memory(error, "a measurement");
}

/* What a plan takes already, from the cache, from a bucket near by, or from the library's own measurements, is the
 * first candidate. */
static tool_exit try_known(attention *s, work *w, tool_error *error)
{
    char staging[1024];
    said reply = {.ok = false};
    point values;
    session_staging(s->base, staging, sizeof(staging));
    TOOL_TRY(ask(s, w, "lookup", json_pack("{s:s+}", "tuning_dir", staging, "/tuning"), &reply, error));
    const size_t space = space_of(session_text(reply.answer, "engine"));
    const size_t bytes = w->set->spaces[space].count * sizeof(*values);
    const bool known = reply.ok && strcmp(session_text(reply.answer, "tuning"), "class") != 0 && w->available[space] &&
                       read_point(&w->set->spaces[space], session_text(reply.answer, "parameters"), values) &&
                       memcmp(values, w->defaults[space], bytes) != 0;
    json_decref(reply.answer);
    return known ? try_candidate(s, w, space, values, error) : TOOL_DONE;
}

static tool_exit measure_batch(attention *s, work *w, const batch *chosen, tool_error *error)
{
    for (size_t i = 0; i < chosen->count; i++) {
        if (!chosen->candidate[i].failed)
            TOOL_TRY(try_candidate(s, w, chosen->candidate[i].space, chosen->candidate[i].values, error));
    }
    return TOOL_DONE;
}

/* At least one batch, however little time is left: defaults that nothing was compared with are no result. */
static tool_exit search_case(attention *s, work *w, tool_error *error)
{
    batch chosen;
    for (size_t e = 0; e < ENGINES; e++)
        w->set->spaces[e].one = w->one;
    do {
        TOOL_TRY(choose_batch(s, w, &chosen, error));
        TOOL_TRY(compile_batch(s, w, &chosen, error));
        TOOL_TRY(measure_batch(s, w, &chosen, error));
        w->finished = chosen.count == 0;
    } while (!w->finished && tool_now_ms() < w->end_ms);
    return TOOL_DONE;
}

/* ---- what is kept --------------------------------------------------------------------------------------------------
 */

static tool_exit store(attention *s, const work *w, const char *cache_dir, tool_error *error)
{
    clmgk_error failure = {0};
    const clmgk_tuned tuned = {.choice = w->result->engine,
                               .parameters = w->result->parameters,
                               .time_ms = w->result->tuned_ms,
                               .default_ms = w->result->default_ms};
    return clmgk_tuning_store(s->base->device.library, cache_dir, &w->one->desc, pass_of(w->one), &tuned, &failure) ==
                   CLMGK_OK
               ? TOOL_DONE
               : tool_fail_library(error, &failure);
}

/* Through the public interface: a plan that finds the values in a cache by itself, against the defaults. */
static tool_exit confirm(attention *s, work *w, bool *confirmed, tool_error *error)
{
    char staging[1024];
    said reply = {.ok = false};
    session_staging(s->base, staging, sizeof(staging));
    TOOL_TRY(store(s, w, staging, error));
    TOOL_TRY(ask(s, w, "confirm",
                 json_pack("{s:s+, s:I}", "tuning_dir", staging, "/tuning", "pairs",
                           clamp(CONFIRM_MS / (2 * w->default_ms), MIN_CONFIRM, MAX_CONFIRM)),
                 &reply, error));
    point values;
    const size_t space = space_of(session_text(reply.answer, "engine"));
    const bool reached = reply.ok && strcmp(session_text(reply.answer, "tuning"), "bucket") == 0 &&
                         space == w->best.space &&
                         read_point(&w->set->spaces[space], session_text(reply.answer, "parameters"), values) &&
                         memcmp(values, w->best.values, w->set->spaces[space].count * sizeof(*values)) == 0;
    double ratio = 1;
    *confirmed = reached && session_beats_default(json_object_get(reply.answer, "ratios"), &ratio);
    if (*confirmed) {
        w->result->default_ms = session_number(reply.answer, "default_ms");
        w->result->tuned_ms = ratio * w->result->default_ms;
        w->result->ratio = ratio;
    }
    json_decref(reply.answer);
    return TOOL_DONE;
}

/* A candidate that only seemed to be faster than what this case has proven before, or than the defaults. */
static tool_exit give_up_best(attention *s, work *w, double proven, tool_error *error)
{
    s->base->report->counts.unconfirmed++;
    w->best.ratio = proven;
    return tell(w, w->best.space, w->best.values, 1) ? TOOL_DONE : tool_fail_memory(error, "a measurement");
}

/* The best candidate, if it is right and faster, or else what an earlier turn has proven, or else the defaults, into
 * the cache. */
static tool_exit settle(attention *s, work *w, tool_error *error)
{
    const tune_result before = *w->result;
    const bool proven = before.outcome == TUNE_FASTER;
    bool keep = w->best.ratio < 1 - LEAST_CONFIRMED;
    if (keep) {
        snprintf(w->result->engine, sizeof(w->result->engine), "%s", w->set->spaces[w->best.space].name);
        print_point(&w->set->spaces[w->best.space], w->best.values, w->defaults[w->best.space], w->result->parameters,
                    sizeof(w->result->parameters));
        w->result->tuned_ms = w->best.ratio * w->result->default_ms; /* a plan takes no entry that gains less */
        TOOL_TRY(confirm(s, w, &keep, error));
        if (!keep)
            TOOL_TRY(give_up_best(s, w, proven ? before.ratio : 1, error));
    }
    w->result->outcome = keep ? TUNE_FASTER : TUNE_DEFAULT;
    if (!keep && proven) {
        *w->result = before;
    } else if (!keep) {
        snprintf(w->result->engine, sizeof(w->result->engine), "%s", w->set->spaces[w->own].name);
        w->result->parameters[0] = '\0';
        w->result->tuned_ms = w->result->default_ms;
        w->result->ratio = 1;
    }
    char staging[1024];
    session_staging(s->base, staging, sizeof(staging));
    TOOL_TRY(store(s, w, NULL, error));
    TOOL_TRY(store(s, w, staging, error));
    return remember_done(s, w, error);
}

/* ---- all cases ------------------------------------------------------------------------------------------------------
 */

/* `left`: cases that have their turn after this one. */
static void announce(const attention *s, const work *w, size_t left)
{
    const tune_result *r = w->result;
    char name[96];
    tune_case_name(w->one, name, sizeof(name));
    fprintf(stderr, "clmgk-tune: %zu of %zu: %s: ", (size_t)(w - s->cases) + 1, s->base->report->result_count, name);
    switch (r->outcome) {
    case TUNE_REFUSED:
        fprintf(stderr, "not run here: %s", r->message);
        break;
    case TUNE_FASTER:
    case TUNE_KNOWN_FASTER:
        fprintf(stderr, "%.3f -> %.3f ms (%.1f %%) with %s %s", r->default_ms, r->tuned_ms, 100 * (r->ratio - 1),
                r->engine, r->parameters);
        break;
    default:
        fprintf(stderr, "%.3f ms, nothing faster than the defaults", r->default_ms);
    }
    const double spent = session_spent_s(s->base);
    const double rest = fmax(0, s->base->options->budget_s - spent);
    fprintf(stderr, "; %zu tried, %zu to come, %.0f of %.0f s, about %.0f s to go\n", r->tried, left, spent,
            s->base->options->budget_s, left > 0 ? rest : 0);
}

/* A case's turn; a later one goes on where the first ended. */
static tool_exit tune_one(attention *s, work *w, tool_error *error)
{
    bool runs = false;
    if (w->number >= 0 && w->measured) {
        const double before = w->best.ratio;
        TOOL_TRY(search_case(s, w, error));
        return w->best.ratio < before ? settle(s, w, error) : remember_done(s, w, error);
    }
    w->measured = true;
    w->best = (incumbent){.ratio = 1};
    TOOL_TRY(measure_default(s, w, &runs, error));
    if (!runs || !w->available[w->own]) {
        w->finished = true; /* for this run: a later one tries again */
        return remember_done(s, w, error);
    }
    TOOL_TRY(look_at_other(s, w, error));
    TOOL_TRY(begin_search(w, error));
    if (w->available[1 - w->own])
        (void)tune_search_tell(w->set->search[w->one->pass], w->number, 1 - w->own, w->defaults[1 - w->own],
                               1e-3 * w->best.ratio * w->default_ms);
    TOOL_TRY(take_history(s, w, error));
    TOOL_TRY(try_known(s, w, error));
    TOOL_TRY(search_case(s, w, error));
    return settle(s, w, error);
}

/* The programs of the defaults of the next few cases, as many at a time as can be compiled. A failure shows when the
 * case has its turn. */
static tool_exit prepare(attention *s, const work *cases, size_t count, tool_error *error)
{
    for (size_t i = 0; i < count; i++)
        TOOL_TRY(send_job(s, i, &cases[i], "compile", NULL, error));
    for (size_t i = 0; i < count; i++) {
        said reply = {.ok = false};
        TOOL_TRY(session_receive(s->base, i, cases[i].more_ms, &reply, error));
        json_decref(reply.answer);
    }
    return TOOL_DONE;
}

/* What was measured in a case of an earlier run helps in those that are left. */
static tool_exit learn_done(attention *s, work *w, const json_t *done, tool_error *error)
{
    incumbent best;
    w->own = space_of(session_text(done, "own"));
    w->default_ms = w->result->default_ms;
    w->available[w->own] = read_point(&w->set->spaces[w->own], session_text(done, "defaults"), w->defaults[w->own]);
    if (!w->available[w->own])
        return TOOL_DONE;
    TOOL_TRY(begin_search(w, error));
    return recall(s, w, &best) ? TOOL_DONE : tool_fail_memory(error, "a measurement");
}

/* What an earlier run found; its measurements help in other cases. */
static tool_exit take_earlier(attention *s, work *w, tool_error *error)
{
    const json_t *done = session_find_done(s->base, w->result->key);
    if (!done || json_is_true(json_object_get(done, "refused")))
        return TOOL_DONE;
    take_done(done, w->result);
    w->finished = json_is_true(json_object_get(done, "finished"));
    TOOL_TRY(learn_done(s, w, done, error));
    announce(s, w, 0);
    return TOOL_DONE;
}

/* Whether a case has its turn in a round: first those that have no result, then those that promise more. */
static bool has_turn(const work *w, int round)
{
    return !w->finished && (round > 0 || w->result->outcome == TUNE_UNMEASURED);
}

static size_t count_turns(const attention *s, size_t first, int round)
{
    size_t count = 0;
    for (size_t i = first; i < s->base->report->result_count; i++)
        count += has_turn(&s->cases[i], round);
    return count;
}

/* Each case gets its part of the time that is left. What earlier ones did not use goes to later ones. *worked: whether
 * any had its turn. */
static tool_exit tune_round(attention *s, int round, double end_ms, bool *worked, tool_error *error)
{
    size_t prepared = 0;
    *worked = false;
    for (size_t i = 0; i < s->base->report->result_count; i++) {
        work *const w = &s->cases[i];
        const double now = tool_now_ms();
        const size_t turns = count_turns(s, i, round);
        if (!has_turn(w, round) || now >= end_ms || LEAST_RUNS * s->ms_per_flop * w->one->flops > end_ms - now)
            continue;
        if (i >= prepared && !w->measured) {
            const size_t left = s->base->report->result_count - i;
            const size_t count = left < s->base->compilers ? left : s->base->compilers;
            TOOL_TRY(prepare(s, w, count, error));
            prepared = i + count;
        }
        const double start = tool_now_ms();
        w->end_ms = start + fmax(1e3 * LEAST_SHARE_S, (end_ms - start) / (double)turns);
        TOOL_TRY(tune_one(s, w, error));
        announce(s, w, turns - 1);
        *worked = true;
    }
    return TOOL_DONE;
}

static tool_exit tune_all(attention *s, double end_ms, tool_error *error)
{
    for (size_t i = 0; i < s->base->report->result_count; i++)
        TOOL_TRY(take_earlier(s, &s->cases[i], error));
    bool worked = true;
    for (int round = 0; tool_now_ms() < end_ms && (round < 2 || worked); round++)
        TOOL_TRY(tune_round(s, round, end_ms, &worked, error));
    return TOOL_DONE;
}

static void add_case(attention *s, size_t group, size_t index)
{
    s->cases[s->base->report->result_count++] = (work){.group = group,
                                                       .index = index,
                                                       .one = &s->groups[group].cases[index],
                                                       .number = -1,
                                                       .more_ms = DEFAULT_MORE_MS};
}

static void name_result(work *w, tune_result *result)
{
    w->result = result;
    result->one = w->one;
    result->ratio = 1;
    tune_case_key(w->one, result->key, sizeof(result->key));
}

static int by_cost(const void *a, const void *b)
{
    const work *x = a, *y = b;
    return (x->one->flops > y->one->flops) - (x->one->flops < y->one->flops);
}

/* Forward before backward: a backward pass goes with what its forward pass has got. Of each the cheapest first: most is
 * learnt for the time. */
static tool_exit make_results(attention *s, tool_error *error)
{
    const size_t shapes = s->base->options->request.shape_count;
    size_t count = 0;
    for (size_t g = 0; g < shapes; g++)
        count += s->groups[g].count;
    s->base->report->results = calloc(count ? count : 1, sizeof(*s->base->report->results));
    s->cases = calloc(count ? count : 1, sizeof(*s->cases));
    if (!s->base->report->results || !s->cases) {
        tool_fail_memory(error, "the results");
        return TOOL_SYSTEM_ERROR;
    }
    for (int pass = 0; pass < BENCH_PASSES; pass++) {
        work *const first = s->cases + s->base->report->result_count;
        for (size_t g = 0; g < shapes; g++) {
            for (size_t c = 0; c < s->groups[g].count; c++) {
                if ((int)s->groups[g].cases[c].pass == pass)
                    add_case(s, g, c);
            }
        }
        qsort(first, (size_t)(s->cases + s->base->report->result_count - first), sizeof(*first), by_cost);
    }
    for (size_t i = 0; i < s->base->report->result_count; i++) {
        name_result(&s->cases[i], &s->base->report->results[i]);
        TOOL_TRY(take_set(s, &s->cases[i], error));
    }
    return TOOL_DONE;
}

static tool_exit run(attention *s, double end_ms, tool_error *error)
{
    TOOL_TRY(bench_make_groups(&s->base->options->request, false, &s->groups, error));
    TOOL_TRY(make_results(s, error));
    return tune_all(s, end_ms, error);
}

tool_exit tune_attention(session *s, double end_ms, tool_error *error)
{
    attention all = {.base = s};
    const tool_exit status = run(&all, end_ms, error);
    for (size_t i = 0; i < all.set_count; i++) {
        for (int pass = 0; pass < BENCH_PASSES; pass++)
            tune_search_free(all.sets[i].search[pass]);
    }
    free(all.cases);
    s->report->request = s->options->request;
    s->report->groups = all.groups;
    return status;
}
