/* SPDX-License-Identifier: Apache-2.0 */
/* The order of all cases of attention, and the time that each gets. */
#include "attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SETS         3 /* one for each family */
#define SEED             1
#define LEAST_RUNS       6     /* of a case: without time for so many it is not begun */
#define LEAST_SHARE_S    1.0   /* of a case, however little time is left for each */
#define OTHER_STOP_RATIO 1.5   /* another engine is looked at more closely below that */
#define FEW_QUERIES      32    /* fewer say nothing about another engine */
#define DEFAULT_MORE_MS  120e3 /* the defaults are no candidates: without them a case can't be measured */
#define LIMIT_RUNS       200   /* of the defaults: what a candidate may take beside compiling */
#define OTHER_LIMIT_S    15    /* another engine, compiling included: it is a guess */

typedef struct attention {
    session *base;
    kernel_set sets[MAX_SETS];
    size_t set_count;
    double ms_per_flop; /* of the latest case */
    bench_group *groups;
    tuned_case *cases; /* one for each result */
    size_t count;
} attention;

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static bool is_legal(void *user, const int32_t *values)
{
    const engine_space *space = user;
    const point_text list = session_point_text(&space->points, values, NULL);
    if (!space->item)
        return clmgk_tunable_check(space->table, list.text, NULL) == CLMGK_OK;
    const clmgk_tuned tuned = {.choice = space->name, .parameters = list.text};
    return clmgk_tuning_check(space->library, &space->item->desc, candidate_pass(space->item), &tuned, NULL) ==
           CLMGK_OK;
}

static tool_exit make_set(const session *base, clmgk_variant variant, kernel_set *made, tool_error *error)
{
    for (clmgk_engine e = CLMGK_ENGINE_LANE; clmgk_engine_name(e) && made->count < MAX_ENGINES; e++, made->count++) {
        engine_space *space = &made->spaces[made->count];
        space->name = clmgk_engine_name(e);
        space->table = clmgk_tunable_table_of(variant, e);
        space->library = base->device.library;
        TOOL_TRY(session_add_tunables(space->table, &space->points, error));
        made->tables[made->count] =
            (tune_space){space->name, space->points.parameters, space->points.count, is_legal, space};
    }
    for (int pass = 0; pass < BENCH_PASSES; pass++) {
        made->search[pass] = tune_search_create(made->tables, made->count, SEED + (uint64_t)pass,
                                                base->options->random ? TUNE_RANDOM : TUNE_NEIGHBOURS);
        TOOL_TRY(tool_check_memory(made->search[pass], "the search", error));
    }
    for (size_t e = 0; e < made->count; e++)
        made->points += tune_search_space_size(made->search[0], e);
    return TOOL_DONE;
}

/* The kernels of a case's variant. */
static tool_exit take_set(attention *all, tuned_case *c, tool_error *error)
{
    const clmgk_variant variant = c->item->desc.variant;
    const char *table = clmgk_tunable_table_of(variant, CLMGK_ENGINE_LANE);
    for (size_t i = 0; i < all->set_count && !c->set; i++) {
        if (strcmp(all->sets[i].spaces[0].table, table) == 0)
            c->set = &all->sets[i];
    }
    if (!c->set && all->set_count == MAX_SETS)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "table %s: more tables than this program knows", table);
    if (!c->set) {
        c->set = &all->sets[all->set_count++];
        TOOL_TRY(make_set(all->base, variant, c->set, error));
    }
    c->result->space = c->set->points;
    return TOOL_DONE;
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

/* The engine that is used without tuning, and its defaults. */
static bool take_defaults(tuned_case *c, const json_t *object)
{
    candidate usual = {.ratio = 1};
    const bool known = candidate_read(c, object, &usual);
    c->usual = usual.space;
    c->defaults[c->usual] = usual;
    return c->available[c->usual] = known;
}

/* Measures the defaults, the reference for all candidates. *runs is false if the device can't run them. */
static tool_exit measure_default(tuned_case *c, bool *runs, tool_error *error)
{
    const session_reply *const reply = &c->base->reply;
    tune_result *const result = c->result;
    TOOL_TRY(candidate_ask(c, "default", NULL, error));
    *runs = reply->ok && take_defaults(c, reply->answer);
    if (!reply->ok) {
        result->outcome = TUNE_REFUSED;
        snprintf(result->message, sizeof(result->message), "%s", reply->message);
        return TOOL_DONE;
    }
    c->default_ms = session_number(reply->answer, "ms");
    c->more_ms = LIMIT_RUNS * c->default_ms;
    result->default_ms = result->tuned_ms = c->default_ms;
    snprintf(result->engine, sizeof(result->engine), "%s", c->set->spaces[c->usual].name);
    return TOOL_DONE;
}

/* Measures another engine's defaults: in the first case of a pass, and in later ones if it was nearly as fast there. */
static tool_exit look_at_other(tuned_case *c, size_t other, tool_error *error)
{
    const bench_pass pass = c->item->pass;
    engine_space *const space = &c->set->spaces[other];
    candidate *const x = &c->defaults[other];
    const clmgk_tuned tuned = {.choice = space->name, .parameters = ""};
    /* a plan's passes have one engine: the backward pass can only take what the forward pass has */
    const bool allowed =
        clmgk_tuning_check(space->library, &c->item->desc, candidate_pass(c->item), &tuned, NULL) == CLMGK_OK;
    if (!allowed || c->item->desc.length < FEW_QUERIES || (space->looked_at[pass] && !space->near[pass]))
        return TOOL_DONE;
    const double more_ms = c->more_ms;
    x->space = other;
    c->more_ms += 1e3 * fmin(0, OTHER_LIMIT_S - c->base->options->candidate_s);
    TOOL_TRY(candidate_measure(c, x, true, OTHER_STOP_RATIO, error));
    c->more_ms = more_ms;
    space->looked_at[pass] = true;
    space->near[pass] = x->ratio > 0 && x->ratio < OTHER_STOP_RATIO;
    if (space->near[pass] && x->ratio < 1 - LEAST_CONFIRMED)
        TOOL_TRY(candidate_check(c, x, error));
    c->available[other] = space->near[pass] && x->ratio > 0;
    if (c->available[other] && x->ratio < c->best.ratio)
        c->best = *x;
    return TOOL_DONE;
}

static double size_axis(int64_t size)
{
    return log2(fmax(1, (double)size));
}

/* Begins the search of a case: its place, by kinds and by sizes in factors of two, and its defaults. */
static tool_exit begin_search(tuned_case *c, tool_error *error)
{
    const clmgk_attention_desc *desc = &c->item->desc;
    const int32_t *defaults[MAX_ENGINES];
    for (size_t e = 0; e < c->set->count; e++) {
        c->set->spaces[e].item = c->item;
        defaults[e] = c->available[e] ? c->defaults[e].values : NULL;
    }
    const tune_case position = {
        .axes = {(double)desc->variant, (double)desc->dtype, clmgk_array_dtype(desc, CLMGK_ARRAY_K) != desc->dtype,
                 clmgk_array_dtype(desc, CLMGK_ARRAY_V) != desc->dtype,
                 clmgk_array_dtype(desc, CLMGK_ARRAY_O) != desc->dtype, desc->causal != 0, size_axis(desc->components),
                 size_axis(desc->head_size), size_axis(desc->length), size_axis(desc->length_k),
                 size_axis(desc->batch * desc->heads)},
        .default_space = c->usual,
        .defaults = defaults};
    c->number = tune_search_begin(c->set->search[c->item->pass], &position);
    return c->number < 0 ? tool_fail_memory(error, "a case of the search")
                         : candidate_tell(c, &c->defaults[c->usual], error);
}

/* Continues an earlier run, whose fastest candidate may not have been checked. */
static tool_exit take_history(tuned_case *c, tool_error *error)
{
    candidate best;
    TOOL_TRY(candidate_recall(c, &best, error));
    if (best.ratio >= c->best.ratio)
        return TOOL_DONE;
    TOOL_TRY(candidate_check(c, &best, error));
    if (best.ratio > 0)
        c->best = best;
    return best.ratio > 0 ? TOOL_DONE : candidate_tell(c, &best, error);
}

/* The first candidate has the parameters that a plan takes now: from the cache, a bucket near by, or the library's own
 * measurements. */
static tool_exit try_known(tuned_case *c, tool_error *error)
{
    const session_reply *const reply = &c->base->reply;
    candidate known;
    TOOL_TRY(candidate_ask(c, "lookup", json_pack("{s:s+}", "tuning_dir", c->base->staging, "/tuning"), error));
    if (!reply->ok || strcmp(session_text(reply->answer, "tuning"), "class") == 0 ||
        !candidate_read(c, reply->answer, &known) || !c->available[known.space] ||
        candidate_equal(c, &known, &c->defaults[known.space]))
        return TOOL_DONE;
    return candidate_try(c, &known, error);
}

/* At least one batch, however little time is left: defaults that nothing was compared with are no result. */
static tool_exit search_case(tuned_case *c, tool_error *error)
{
    for (size_t e = 0; e < c->set->count; e++)
        c->set->spaces[e].item = c->item;
    do
        TOOL_TRY(candidate_try_batch(c, error));
    while (!c->finished && tool_now_ms() < c->end_ms);
    return TOOL_DONE;
}

/* A case's first turn. */
static tool_exit begin_case(tuned_case *c, tool_error *error)
{
    bool runs = false;
    c->measured = true;
    c->best = (candidate){.ratio = 1};
    TOOL_TRY(measure_default(c, &runs, error));
    if (!runs) {
        c->finished = true; /* for this run: a later one tries again */
        return decision_remember(c, error);
    }
    for (size_t e = 0; e < c->set->count; e++)
        if (e != c->usual)
            TOOL_TRY(look_at_other(c, e, error));
    TOOL_TRY(begin_search(c, error));
    for (size_t e = 0; e < c->set->count; e++)
        if (e != c->usual && c->available[e])
            TOOL_TRY(candidate_tell(c, &c->defaults[e], error));
    TOOL_TRY(take_history(c, error));
    TOOL_TRY(try_known(c, error));
    TOOL_TRY(search_case(c, error));
    return decision_settle(c, error);
}

/* One turn of a case. A later turn continues where this one ended. */
static tool_exit tune_case_turn(tuned_case *c, tool_error *error)
{
    if (c->number < 0 || !c->measured)
        return begin_case(c, error);
    const double before = c->best.ratio;
    TOOL_TRY(search_case(c, error));
    return c->best.ratio < before ? decision_settle(c, error) : decision_remember(c, error);
}

/* Loads the results of an earlier run, whose measurements help in other cases. */
static tool_exit take_earlier(tuned_case *c, tool_error *error)
{
    candidate best;
    const json_t *done = decision_recall(c);
    if (!done)
        return TOOL_DONE;
    c->finished = json_is_true(json_object_get(done, "finished"));
    c->default_ms = c->result->default_ms;
    if (!take_defaults(c, json_object_get(done, "usual")))
        return TOOL_DONE;
    TOOL_TRY(begin_search(c, error));
    return candidate_recall(c, &best, error);
}

/* `left`: cases that have their turn after this one. */
static void announce(const attention *all, const tuned_case *c, size_t left)
{
    const tune_result *r = c->result;
    const double budget_s = all->base->options->budget_s, spent_s = session_spent_s(all->base);
    char name[96];
    tune_case_name(c->item, name, sizeof(name));
    fprintf(stderr, "clmgk-tune: %zu of %zu: %s: ", (size_t)(c - all->cases) + 1, all->count, name);
    if (r->outcome == TUNE_REFUSED)
        fprintf(stderr, "not run here: %s", r->message);
    else if (r->outcome == TUNE_FASTER || r->outcome == TUNE_KNOWN_FASTER)
        fprintf(stderr, "%.3f -> %.3f ms (%.1f %%) with %s %s", r->default_ms, r->tuned_ms, 100 * (r->ratio - 1),
                r->engine, r->parameters);
    else
        fprintf(stderr, "%.3f ms, nothing faster than the defaults", r->default_ms);
    fprintf(stderr, "; %zu tried, %zu to come, %.0f of %.0f s, about %.0f s to go\n", r->tried, left, spent_s, budget_s,
            left > 0 ? fmax(0, budget_s - spent_s) : 0);
    all->base->said_ms = tool_now_ms();
}

/* The programs of the defaults of the next few cases, as many at a time as can be compiled. A failure shows when the
 * case has its turn. */
static tool_exit prepare(session *s, const tuned_case *cases, size_t count, tool_error *error)
{
    for (size_t i = 0; i < count; i++)
        TOOL_TRY(candidate_send(&cases[i], i, "compile", NULL, error));
    for (size_t i = 0; i < count; i++)
        TOOL_TRY(session_receive(s, i, cases[i].more_ms, error));
    return TOOL_DONE;
}

/* Whether a case has a turn in a round. First come cases without a result, then cases that promise an improvement. */
static bool has_turn(const tuned_case *c, int round)
{
    return !c->finished && (round > 0 || c->result->outcome == TUNE_UNMEASURED);
}

static size_t count_turns(const attention *all, size_t first, int round)
{
    size_t count = 0;
    for (size_t i = first; i < all->count; i++)
        count += has_turn(&all->cases[i], round);
    return count;
}

/* Each case gets its part of the time that is left. What earlier ones did not use goes to later ones; the first without
 * a result has its turn however small the budget. *worked: whether any had its turn. */
static tool_exit tune_round(attention *all, int round, double end_ms, bool *worked, tool_error *error)
{
    size_t prepared = 0;
    *worked = false;
    for (size_t i = 0; i < all->count; i++) {
        tuned_case *const c = &all->cases[i];
        const double now = tool_now_ms();
        const size_t turns = count_turns(all, i, round);
        const bool fits = now < end_ms && LEAST_RUNS * all->ms_per_flop * c->item->flops <= end_ms - now;
        if (!has_turn(c, round) || !(fits || (round == 0 && !*worked)))
            continue;
        if (i >= prepared && !c->measured) {
            const size_t left = all->count - i;
            const size_t count = left < all->base->compilers ? left : all->base->compilers;
            TOOL_TRY(prepare(all->base, c, count, error));
            prepared = i + count;
        }
        const double start = tool_now_ms();
        c->end_ms = start + fmax(1e3 * LEAST_SHARE_S, (end_ms - start) / (double)turns);
        TOOL_TRY(tune_case_turn(c, error));
        if (c->result->outcome != TUNE_REFUSED)
            all->ms_per_flop = c->default_ms / c->item->flops;
        announce(all, c, turns - 1);
        *worked = true;
    }
    return TOOL_DONE;
}

static int by_cost(const void *a, const void *b)
{
    const tuned_case *x = a, *y = b;
    return (x->item->flops > y->item->flops) - (x->item->flops < y->item->flops);
}

static void add_cases(attention *all, int pass)
{
    tuned_case *const first = all->cases + all->count;
    for (size_t g = 0; g < all->base->options->request.shape_count; g++) {
        for (size_t i = 0; i < all->groups[g].count; i++) {
            const bench_case *item = &all->groups[g].cases[i];
            if ((int)item->pass == pass)
                all->cases[all->count++] = (tuned_case){
                    .base = all->base, .group = g, .index = i, .item = item, .number = -1, .more_ms = DEFAULT_MORE_MS};
        }
    }
    qsort(first, (size_t)(all->cases + all->count - first), sizeof(*first), by_cost);
}

/* Forward passes come before backward passes, which use the parameters found for their forward pass. Within each, the
 * cheapest cases come first, because they teach most in the same time. */
static tool_exit make_cases(attention *all, tool_error *error)
{
    tune_report *const report = all->base->report;
    size_t count = 1;
    for (size_t g = 0; g < all->base->options->request.shape_count; g++)
        count += all->groups[g].count;
    report->results = calloc(count, sizeof(*report->results));
    all->cases = calloc(count, sizeof(*all->cases));
    if (!report->results || !all->cases)
        return tool_fail_memory(error, "the results");
    for (int pass = 0; pass < BENCH_PASSES; pass++)
        add_cases(all, pass);
    for (; report->result_count < all->count; report->result_count++) {
        tuned_case *const c = &all->cases[report->result_count];
        c->result = &report->results[report->result_count];
        *c->result = (tune_result){.item = c->item, .ratio = 1};
        tune_case_key(c->item, c->result->key, sizeof(c->result->key));
        TOOL_TRY(take_set(all, c, error));
    }
    return TOOL_DONE;
}

static tool_exit tune_cases(attention *all, double end_ms, tool_error *error)
{
    bool worked = true;
    TOOL_TRY(bench_make_groups(&all->base->options->request, false, &all->groups, error));
    TOOL_TRY(make_cases(all, error));
    if (all->count > 0)
        fprintf(stderr, "clmgk-tune: %s: %zu %s of attention, budget %.0f s\n", all->base->report->device.name,
                all->count, tool_plural(all->count, "case", "cases"), all->base->options->budget_s);
    for (size_t i = 0; i < all->count; i++) {
        TOOL_TRY(take_earlier(&all->cases[i], error));
        if (all->cases[i].result->outcome != TUNE_UNMEASURED)
            announce(all, &all->cases[i], 0);
    }
    for (int round = 0; round == 0 || (tool_now_ms() < end_ms && (round < 2 || worked)); round++)
        TOOL_TRY(tune_round(all, round, end_ms, &worked, error));
    return TOOL_DONE;
}

tool_exit tune_attention(session *s, double end_ms, tool_error *error)
{
    attention all = {.base = s};
    const tool_exit status = tune_cases(&all, end_ms, error);
    for (size_t i = 0; i < all.set_count; i++) {
        for (int pass = 0; pass < BENCH_PASSES; pass++)
            tune_search_free(all.sets[i].search[pass]);
    }
    free(all.cases);
    s->report->request = s->options->request;
    s->report->groups = all.groups;
    return status;
}
