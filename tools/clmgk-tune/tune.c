/* SPDX-License-Identifier: Apache-2.0 */
/* A device's session: the time that each case gets, its candidates, and the proof of the best one. */
#include "tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_COMPILERS    4     /* processes that compile at the same time */
#define QUIET_MS         3e3   /* between two lines of progress */
#define PRODUCTS_SHARE   0.2   /* of the budget, where products are wanted beside attention */
#define PROVIDERS_SHARE  0.75  /* of the time of products: the rest is for CLBlast */
#define LEAST_RUNS       6     /* of a case: without time for so many it is not begun */
#define LEAST_SHARE_MS   1e3   /* of a case, however little time is left for each */
#define LEAST_KILL_MS    20e3  /* its first candidates have so long, if the budget allows it */
#define SEARCH_PART      0.8   /* of a case's time; the rest is for the proof */
#define DEFAULT_MORE_MS  120e3 /* the defaults are no candidates: without them a case can't be measured */
#define LIMIT_RUNS       200   /* of the defaults: what a candidate may take beside compiling */
#define OTHER_LIMIT_MS   15e3  /* another engine, compiling included: it is a guess */
#define OTHER_STOP_RATIO 1.5   /* another engine is looked at more closely below that */
#define STOP_RATIO       1.15  /* slower than that by the first pair of runs: no second */
#define PAIR_MS          60.0  /* runs of a candidate */
#define MAX_PAIRS        5
#define PROOF_MS         1500.0 /* runs of the winner */
#define MIN_PROOF        5
#define MAX_PROOF        15
#define WORTH            (1 - CLMGK_TUNING_LEAST_GAIN) /* a plan takes no entry that gains less */

typedef struct session {
    const tune_options *options;
    const tune_setup *setup;
    tune_report *report;
    tune_history history;
    tool_device device; /* for the cache's entries: nothing is run on it */
    char staging[1024]; /* the folder of the copy of the cache in which candidates are put to the proof */
    tune_child children[MAX_COMPILERS];
    size_t compilers;
    json_t *answer; /* the latest one */
    bool ok, late;  /* or why there is none; late: its time was less than a candidate's limit */
    const char *why, *message;
    double start_ms, said_ms; /* said: when the last line of progress was printed */
    double ms_per_flop;       /* of the latest case of attention */
    bool worked;              /* a case had its turn */
} session;

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static bool is_set(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

static int clamp(double number, int low, int high)
{
    return number < low ? low : number > high ? high : (int)number;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* Starts a job of a candidate (NULL: none; `own`: its space's defaults), with the pairs of `more`; prints the step if
 * the last line of progress is some seconds old. */
static tool_exit start(session *s, const tune_case *c, size_t child, const tune_candidate *x, bool own, json_t *more,
                       const char *step, tool_error *error)
{
    const tune_space *space = x ? &c->place.spaces[x->space] : NULL;
    tune_text text = {""};
    if (space && !own)
        text = tune_point_text(space, space->count, x->values, NULL);
    json_t *job =
        json_pack("{s:i, s:I, s:I, s:s?, s:s?, s:i, s:b}", "kind", (int)c->kind, "group", (json_int_t)c->group, "index",
                  (json_int_t)c->index, "choice", space ? space->name : NULL, "parameters",
                  space && space->count > 0 ? text.text : NULL, "calls", c->calls, "event_clock", (int)c->event_clock);
    if (tool_now_ms() - s->said_ms > QUIET_MS) {
        fprintf(stderr, "clmgk-tune: %s: %s\n", c->name, step);
        s->said_ms = tool_now_ms();
    }
    return tune_child_start(s->setup, tool_json_merge(job, more), &s->children[child], error);
}

/* Its answer: within the limit of candidates and `more_ms`, and until `kill_ms`. */
static tool_exit finish(session *s, size_t child, double more_ms, double kill_ms, tool_error *error)
{
    const double limit = 1e3 * s->options->candidate_s + more_ms, left = fmax(0, kill_ms - tool_now_ms());
    bool hung = false;
    json_decref(s->answer);
    s->answer = NULL;
    TOOL_TRY(tune_child_finish(s->setup, &s->children[child], fmin(limit, left), &hung, &s->answer, error));
    s->ok = is_set(s->answer, "ok");
    s->late = hung && left < limit;
    s->why = hung ? "hung" : s->answer ? "refused" : "died";
    s->message = hung ? "no answer in time" : s->answer ? text_of(s->answer, "message") : "the process ended";
    return TOOL_DONE;
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

/* The least ratio of a case's candidates; 1: none is faster. */
static double best_ratio(const session *s, const tune_case *c)
{
    const tune_candidate *best = tune_fastest(&s->report->measured, &c->place, SIZE_MAX);
    return best ? fmin(1, best->ratio) : 1;
}

static tool_exit add(session *s, const tune_case *c, const tune_candidate *x, tool_error *error)
{
    return tune_add(&s->report->measured, &c->place, x) ? TOOL_DONE : tool_fail_memory(error, "a measurement");
}

/* For the search and the history. `why` is NULL for a candidate that did not fail. */
static tool_exit remember(session *s, const tune_case *c, const tune_candidate *x, const char *why, tool_error *error)
{
    const tune_space *space = &c->place.spaces[x->space];
    TOOL_TRY(add(s, c, x, error));
    return tune_history_add(&s->history,
                            json_pack("{s:s, s:s, s:s, s:o, s:s?, s:o}", "case", c->key, "choice", space->name,
                                      "parameters", tune_point_text(space, space->count, x->values, NULL).text, "ratio",
                                      tool_json_number(x->ratio), "failed", why, "message",
                                      why ? tool_json_text(s->message) : json_null()),
                            error);
}

/* The answer on a candidate. Where its time was cut it stays unknown. */
static tool_exit judge(session *s, tune_case *c, tune_candidate *x, tool_error *error)
{
    tune_report *report = s->report;
    const char *why = !s->ok ? s->why : is_set(s->answer, "wrong") ? "wrong" : NULL;
    x->ratio = why ? -1 : number_of(s->answer, "ratio");
    if (s->late)
        return TOOL_DONE;
    c->tried++;
    report->counts.tried++;
    report->counts.slow += !why && is_set(s->answer, "slow");
    report->counts.hung += why && strcmp(why, "hung") == 0;
    report->counts.died += why && strcmp(why, "died") == 0;
    report->counts.wrong += why && strcmp(why, "wrong") == 0;
    report->counts.failed += why && strcmp(why, "refused") == 0;
    return remember(s, c, x, why, error);
}

/* Times a candidate in turn with the defaults; a new fastest one is checked, too. */
static tool_exit measure(session *s, tune_case *c, const tune_candidate *x, bool own, double stop, double kill_ms,
                         tool_error *error)
{
    const double best = best_ratio(s, c);
    json_t *limits = json_pack("{s:i, s:f, s:f}", "pairs", clamp(PAIR_MS / c->default_ms, 2, MAX_PAIRS), "stop",
                               stop * best, "check_below", fmin(best, WORTH));
    TOOL_TRY(start(s, c, 0, x, own, limits, "measuring a candidate", error));
    return finish(s, 0, LIMIT_RUNS * c->default_ms, kill_ms, error);
}

/* The next few candidates: compiled at the same time, measured one after another. */
static tool_exit try_batch(session *s, tune_case *c, double kill_ms, tool_error *error)
{
    const size_t most = c->kind == TUNE_ATTENTION ? s->compilers : 1;
    tune_candidate batch[MAX_COMPILERS];
    bool failed[MAX_COMPILERS] = {false};
    size_t count = 0;
    while (count < most && tune_propose(&s->report->measured, &c->place, &batch[count]))
        count++;
    for (size_t i = 0; count > 1 && i < count; i++)
        TOOL_TRY(start(s, c, i, &batch[i], false, json_object(), "compiling", error));
    for (size_t i = 0; count > 1 && i < count; i++) {
        TOOL_TRY(finish(s, i, 0, kill_ms, error));
        failed[i] = !s->ok;
        if (!s->ok)
            TOOL_TRY(judge(s, c, &batch[i], error));
    }
    for (size_t i = 0; i < count && tool_now_ms() < kill_ms; i++) {
        if (failed[i])
            continue;
        TOOL_TRY(measure(s, c, &batch[i], false, STOP_RATIO, kill_ms, error));
        TOOL_TRY(judge(s, c, &batch[i], error));
    }
    c->finished = count == 0;
    return TOOL_DONE;
}

/* ---- the result of a case ---------------------------------------------------------------------------------------- */

static void set_result(tune_case *c, const tune_candidate *x, double ratio, tune_outcome outcome)
{
    const tune_space *space = &c->place.spaces[x->space];
    const bool partial = c->kind != TUNE_CLBLAST && c->place.available[x->space];
    snprintf(c->choice, sizeof(c->choice), "%s", space->name);
    snprintf(c->parameters, sizeof(c->parameters), "%s",
             tune_point_text(space, space->count, x->values, partial ? c->place.defaults[x->space].values : NULL).text);
    c->ratio = ratio;
    c->tuned_ms = ratio * c->default_ms;
    c->outcome = outcome;
}

static tool_exit remember_result(session *s, const tune_case *c, tool_error *error)
{
    const tune_space *usual = &c->place.spaces[c->usual];
    return tune_history_add(
        &s->history,
        json_pack("{s:b, s:b, s:s, s:b, s:s, s:s, s:f, s:f, s:f, s:{s:s, s:s}}", "done", 1, "finished",
                  (int)c->finished, "case", c->key, "faster", (int)(c->outcome == TUNE_FASTER), "choice", c->choice,
                  "parameters", c->parameters, "default_ms", c->default_ms, "ms", c->tuned_ms, "ratio", c->ratio,
                  "usual", "choice", usual->name, "parameters",
                  tune_point_text(usual, usual->count, c->place.defaults[c->usual].values, NULL).text),
        error);
}

/* Faster beyond noise: the median of the ratios with twice its standard error, from the median distance. */
static bool beats_default(double *ratios, size_t count, double *median)
{
    double distance[MAX_PROOF];
    if (count < MIN_PROOF)
        return false;
    *median = tool_spread_of(ratios, count).median;
    for (size_t i = 0; i < count; i++)
        distance[i] = fabs(ratios[i] - *median);
    const double error = 1.2533 * 1.4826 * tool_spread_of(distance, count).median / sqrt((double)count);
    return *median <= WORTH && *median + 2 * error < 1;
}

/* Compares a plan that finds the candidate in the copy of the cache with the defaults. A process has one pair of runs
 * with CLBlast's parameters: several are asked. */
static tool_exit prove(session *s, tune_case *c, const tune_candidate *x, bool *proven, tool_error *error)
{
    const int pairs = clamp(PROOF_MS / (2 * c->default_ms), MIN_PROOF, MAX_PROOF);
    double ratios[MAX_PROOF], median = 1;
    size_t count = 0;
    tune_candidate taken;
    set_result(c, x, x->ratio, TUNE_FASTER);
    TOOL_TRY(tune_store(c, s->staging, error));
    for (*proven = true; *proven && count < MIN_PROOF;) {
        const double kill_ms = fmax(c->kill_ms, tool_now_ms() + 6 * pairs * c->default_ms);
        const json_t *ratio = NULL;
        size_t i = 0;
        json_t *job = json_pack("{s:s+, s:i, s:f}", "tuning_dir", s->staging, "/tuning", "pairs", pairs, "stop", 1e9);
        TOOL_TRY(start(s, c, 0, NULL, false, job, "measuring the best candidate again", error));
        TOOL_TRY(finish(s, 0, LIMIT_RUNS * c->default_ms, kill_ms, error));
        *proven = s->ok && tune_read(c, s->answer, &taken) && tune_same(&c->place, &taken, x);
        json_array_foreach(json_object_get(s->answer, "ratios"), i, ratio)
        {
            if (count < MAX_PROOF)
                ratios[count++] = json_number_value(ratio);
        }
    }
    *proven = *proven && beats_default(ratios, count, &median);
    if (*proven) {
        c->default_ms = number_of(s->answer, "default_ms");
        set_result(c, x, median, TUNE_FASTER);
    }
    return TOOL_DONE;
}

/* The best candidate, if it is faster, or else what was proven before, or else the defaults, into the cache. Where
 * there was no time to compare the defaults with anything, there is no result. */
static tool_exit settle(session *s, tune_case *c, tool_error *error)
{
    const tune_case before = *c;
    const tune_candidate *fastest = tune_fastest(&s->report->measured, &c->place, SIZE_MAX);
    bool proven = false;
    if (fastest && fastest->ratio < WORTH) {
        tune_candidate best = *fastest;
        TOOL_TRY(prove(s, c, &best, &proven, error));
        if (!proven)
            *c = before;
        if (!proven && !s->late) { /* it only seemed to be faster */
            s->report->counts.unconfirmed++;
            best.ratio = 1;
            TOOL_TRY(remember(s, c, &best, NULL, error));
        }
    }
    if (c->outcome != TUNE_FASTER)
        set_result(c, &c->place.defaults[c->usual], 1,
                   c->outcome == TUNE_DEFAULT || c->tried > 0 || c->finished || c->fair ? TUNE_DEFAULT
                                                                                        : TUNE_UNMEASURED);
    TOOL_TRY(tune_store(c, s->staging, error));
    if (c->outcome == TUNE_UNMEASURED)
        return TOOL_DONE;
    TOOL_TRY(tune_store(c, NULL, error));
    return remember_result(s, c, error);
}

/* ---- the work on a case ------------------------------------------------------------------------------------------ */

/* Measures the defaults, the reference for all candidates, and what a plan takes now: from the cache, a bucket near by,
 * or the library's own measurements. c->begun: false if the device can't run them, or there was no time. */
static tool_exit measure_defaults(session *s, tune_case *c, double kill_ms, tool_error *error)
{
    tune_candidate known;
    for (int cached = 1; cached >= 0; cached--) { /* an entry of the cache may be to blame for a failure */
        json_t *job = json_pack("{s:i, s:f, s:f}", "pairs", 2, "stop", STOP_RATIO, "check_below", WORTH);
        if (cached)
            job = tool_json_merge(job, json_pack("{s:s+}", "tuning_dir", s->staging, "/tuning"));
        TOOL_TRY(start(s, c, 0, NULL, false, job, "measuring the defaults", error));
        TOOL_TRY(finish(s, 0, DEFAULT_MORE_MS, kill_ms, error));
        if (s->ok || s->late)
            break;
    }
    const json_t *found = json_object_get(s->answer, "usual");
    c->begun = s->ok && tune_take_usual(c, found, s->report->device.device_class);
    if (!c->begun) {
        c->finished = !s->late; /* for this run: a later one tries again */
        c->outcome = s->late ? c->outcome : TUNE_REFUSED;
        snprintf(c->message, sizeof(c->message), "%s", s->message);
        return tune_history_add(
            &s->history,
            json_pack("{s:s, s:b, s:o}", "case", c->key, "late", (int)s->late, "message", tool_json_text(c->message)),
            error);
    }
    c->default_ms = number_of(s->answer, "default_ms");
    c->tuned_ms = c->ratio * c->default_ms;
    c->calls = (int)number_of(s->answer, "calls");
    c->event_clock = is_set(s->answer, "event_clock");
    c->place.defaults[c->usual].ratio = 1;
    if (tune_read(c, found, &known)) /* CLBlast does not tell its own */
        TOOL_TRY(add(s, c, &c->place.defaults[c->usual], error));
    return tune_read(c, s->answer, &known) && !tune_same(&c->place, &known, &c->place.defaults[c->usual])
               ? judge(s, c, &known, error)
               : TOOL_DONE;
}

/* Measures another choice's defaults: every provider; an engine unless it was much slower in an earlier case. */
static tool_exit look_at_other(session *s, tune_case *c, size_t space, tool_error *error)
{
    tune_candidate x = {.space = space};
    const bool engine = c->kind == TUNE_ATTENTION;
    const double now = tool_now_ms(), guess_ms = now + fmin(OTHER_LIMIT_MS, (c->kill_ms - now) / 2);
    if (space == c->usual || c->family->far[space] || !tune_may_try(c, space))
        return TOOL_DONE;
    TOOL_TRY(measure(s, c, &x, true, OTHER_STOP_RATIO, engine ? guess_ms : c->kill_ms, error));
    if ((s->ok && tune_read(c, s->answer, &x)) || c->place.spaces[space].count == 0)
        TOOL_TRY(judge(s, c, &x, error));
    c->place.defaults[space] = x;
    c->place.available[space] = x.ratio > 0 && (!engine || x.ratio < OTHER_STOP_RATIO);
    c->family->far[space] = engine && !c->place.available[space];
    return TOOL_DONE;
}

/* One turn of a case: at least one batch of candidates, however little time is left. A later turn continues where this
 * one ended. */
static tool_exit take_turn(session *s, tune_case *c, double default_kill_ms, tool_error *error)
{
    const bool first = !c->begun;
    if (first)
        TOOL_TRY(measure_defaults(s, c, default_kill_ms, error));
    if (!c->begun)
        return TOOL_DONE;
    for (size_t i = 0; first && i < c->place.count; i++)
        TOOL_TRY(look_at_other(s, c, i, error));
    const double before = first ? 2 : best_ratio(s, c);
    const double proof_ms = (1 - SEARCH_PART) * fmax(0, c->kill_ms - tool_now_ms());
    do
        TOOL_TRY(try_batch(s, c, c->kill_ms - proof_ms, error));
    while (!c->finished && tool_now_ms() < c->end_ms);
    return c->outcome != TUNE_FASTER || best_ratio(s, c) < before ? settle(s, c, error) : remember_result(s, c, error);
}

/* Takes over what an earlier run found: a measurement, which helps in other cases, too, or a result. */
static tool_exit take_earlier(session *s, tune_case *c, const json_t *record, tool_error *error)
{
    tune_candidate x;
    if (!json_object_get(record, "done")) {
        if (!tune_read(c, record, &x))
            return TOOL_DONE;
        x.ratio = json_is_string(json_object_get(record, "failed")) ? -1 : number_of(record, "ratio");
        return add(s, c, &x, error);
    }
    if (!tune_take_usual(c, json_object_get(record, "usual"), s->report->device.device_class))
        return TOOL_DONE;
    c->outcome = is_set(record, "faster") ? TUNE_FASTER : TUNE_DEFAULT;
    c->finished = is_set(record, "finished");
    snprintf(c->choice, sizeof(c->choice), "%s", text_of(record, "choice"));
    snprintf(c->parameters, sizeof(c->parameters), "%s", text_of(record, "parameters"));
    c->default_ms = number_of(record, "default_ms");
    c->tuned_ms = number_of(record, "ms");
    c->ratio = number_of(record, "ratio");
    return TOOL_DONE;
}

/* ---- the order of cases ------------------------------------------------------------------------------------------ */

/* `left`: cases that have their turn after this one. */
static void announce(session *s, const tune_case *c, size_t left)
{
    const double budget_s = s->options->budget_s, spent_s = 1e-3 * (tool_now_ms() - s->start_ms);
    fprintf(stderr, "clmgk-tune: %zu of %zu: %s: ", (size_t)(c - s->report->cases) + 1, s->report->count, c->name);
    if (c->outcome == TUNE_REFUSED)
        fprintf(stderr, "not run here: %s", c->message);
    else if (c->outcome == TUNE_UNMEASURED)
        fprintf(stderr, "no time to compare the defaults with anything");
    else if (c->outcome == TUNE_FASTER)
        fprintf(stderr, "%.3f -> %.3f ms (%.1f %%) with %s %s", c->default_ms, c->tuned_ms, 100 * (c->ratio - 1),
                c->choice, c->parameters);
    else
        fprintf(stderr, "%.3f ms, nothing faster than the defaults", c->default_ms);
    fprintf(stderr, "; %zu tried, %zu to come, %.0f of %.0f s, about %.0f s to go\n", c->tried, left, spent_s, budget_s,
            left > 0 ? fmax(0, budget_s - spent_s) : 0);
    s->said_ms = tool_now_ms();
}

static tool_exit load_history(session *s, tool_error *error)
{
    tune_report *report = s->report;
    const json_t *record = NULL;
    size_t n = 0;
    json_array_foreach(s->history.records, n, record)
    {
        for (size_t i = 0; i < report->count; i++)
            if (strcmp(report->cases[i].key, text_of(record, "case")) == 0)
                TOOL_TRY(take_earlier(s, &report->cases[i], record, error));
    }
    for (size_t i = 0; i < report->count; i++)
        if (report->cases[i].outcome != TUNE_UNMEASURED)
            announce(s, &report->cases[i], 0);
    return TOOL_DONE;
}

/* Whether a case has a turn in a round. First come cases without a result, then cases that promise an improvement.
 * CLBlast's has one in all: its values in use are no longer the defaults then. */
static bool has_turn(const tune_case *c, tune_kind kind, int round)
{
    return c->kind == kind && !c->finished &&
           (kind == TUNE_CLBLAST ? !c->begun : round > 0 || c->outcome == TUNE_UNMEASURED);
}

/* The programs of the defaults of the next few cases, as many at a time as can be compiled. A failure shows when the
 * case has its turn. */
static tool_exit prepare(session *s, size_t first, double kill_ms, size_t *end, tool_error *error)
{
    const tune_case *cases = s->report->cases;
    for (*end = first; *end < TOOL_MIN(s->report->count, first + s->compilers) && cases[*end].item; ++*end)
        TOOL_TRY(start(s, &cases[*end], *end - first, NULL, false, json_object(), "compiling", error));
    for (size_t i = first; i < *end; i++)
        TOOL_TRY(finish(s, i - first, DEFAULT_MORE_MS, kill_ms, error));
    return TOOL_DONE;
}

/* All cases of a kind, each with an equal share of the time that is left; what earlier ones did not use goes to later
 * ones. The very first case of attention has its turn however small the budget. *worked: whether any had its turn. */
static tool_exit take_round(session *s, tune_kind kind, int round, double end_ms, bool *worked, tool_error *error)
{
    size_t turns = 0, prepared = 0;
    *worked = false;
    for (size_t i = 0; i < s->report->count; i++)
        turns += has_turn(&s->report->cases[i], kind, round);
    for (size_t i = 0; i < s->report->count; i++) {
        tune_case *const c = &s->report->cases[i];
        if (!has_turn(c, kind, round))
            continue;
        const bool first = c->item && !s->worked;
        const double left = first ? INFINITY : end_ms - tool_now_ms();
        turns--;
        if (left <= 0 || (c->item && LEAST_RUNS * s->ms_per_flop * c->item->flops > left))
            continue;
        const double default_kill_ms = first ? INFINITY : end_ms;
        if (c->item && i >= prepared && !c->begun)
            TOOL_TRY(prepare(s, i, default_kill_ms, &prepared, error));
        const double now = tool_now_ms(), share = fmax(LEAST_SHARE_MS, (end_ms - now) / (double)(turns + 1));
        c->end_ms = now + SEARCH_PART * share;
        c->kill_ms = fmin(now + fmax(share, LEAST_KILL_MS), default_kill_ms);
        c->fair = c->kill_ms >= now + LEAST_KILL_MS;
        TOOL_TRY(take_turn(s, c, default_kill_ms, error));
        if (c->item && c->begun)
            s->ms_per_flop = c->default_ms / c->item->flops;
        announce(s, c, turns);
        s->worked = *worked = true;
    }
    return TOOL_DONE;
}

/* Products come after attention; matrix units, whose parameters are searched for each product, leave CLBlast some of
 * the time. */
static tool_exit take_all(session *s, tool_error *error)
{
    const double end_ms = s->start_ms + 1e3 * s->options->budget_s;
    TOOL_TRY(tune_make_cases(s->options, s->device.library, s->report, error));
    fprintf(stderr, "clmgk-tune: %s: %zu %s, budget %.0f s\n", s->report->device.name, s->report->count,
            tool_plural(s->report->count, "case", "cases"), s->options->budget_s);
    TOOL_TRY(load_history(s, error));
    for (tune_kind kind = TUNE_ATTENTION; kind < TUNE_KINDS; kind++) {
        const double now = tool_now_ms(), products = s->options->product_count > 0 ? PRODUCTS_SHARE : 0;
        const double kind_end_ms = kind == TUNE_ATTENTION ? end_ms - products * 1e3 * s->options->budget_s
                                   : kind == TUNE_PRODUCT ? now + PROVIDERS_SHARE * (end_ms - now)
                                                          : end_ms;
        bool worked = true;
        for (int round = 0; round == 0 || (tool_now_ms() < kind_end_ms && (round < 2 || worked)); round++)
            TOOL_TRY(take_round(s, kind, round, kind_end_ms, &worked, error));
    }
    return TOOL_DONE;
}

/* ---- the session ------------------------------------------------------------------------------------------------- */

/* The folder of the cache, which is made if it is not there, and can be written; and a copy, where candidates are put
 * to the proof: a plan's passes are chosen together. One with values that are not allowed is not copied: plans skip
 * them. */
static tool_exit open_cache(const session *s, clmgk_tuning_info *info, tool_error *error)
{
    static const char empty[] = "clmgk-tuning 1\n";
    char *text = NULL;
    size_t length = 0;
    TOOL_TRY(tool_check_library(clmgk_tuning_get_info(NULL, info, &error->library), error));
    if (!info->path[0])
        return tool_fail(error, TOOL_BAD_INPUT,
                         "CLMGK_CACHE_DIR is empty, so that no files are used: expected a folder for what is measured");
    TOOL_TRY(tool_check_library(clmgk_tuning_import(NULL, empty, sizeof(empty) - 1, NULL, &error->library), error));
    TOOL_TRY(tune_export_text(NULL, &text, &length, error));
    const clmgk_status done = clmgk_tuning_import(s->staging, text, length, NULL, &error->library);
    free(text);
    return done == CLMGK_ERROR_INVALID_VALUE ? TOOL_DONE : tool_check_library(done, error);
}

tool_exit tune_device(const tune_options *options, tune_setup *setup, tune_report *report, tool_error *error)
{
    const clmgk_device_info *info = &report->device;
    session s = {.options = options, .setup = setup, .report = report, .history = {.file = -1}};
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    bool hung = false;
    tool_error ignored;
    tool_exit status = TOOL_DONE;
    s.start_ms = tool_now_ms();
    s.compilers = (size_t)clamp((double)sysconf(_SC_NPROCESSORS_ONLN), 2, MAX_COMPILERS);
    snprintf(s.staging, sizeof(s.staging), "%s/staging", setup->folder);
    snprintf(setup->selector, sizeof(setup->selector), "%u:%u", info->platform_index, info->device_index);
    TOOL_TRY(open_cache(&s, &cache, error));
    TOOL_TRY_GOTO(status, tune_history_open(cache.path, info, options->resume, &s.history, error), done);
    TOOL_TRY_GOTO(status, tool_device_open_info(info, &s.device, error), done);
    status = take_all(&s, error);
done:
    report->spent_s = 1e-3 * (tool_now_ms() - s.start_ms);
    for (size_t i = 0; i < MAX_COMPILERS; i++) {
        if (s.children[i].process) /* after a failure */
            (void)tune_child_finish(setup, &s.children[i], 0, &hung, &s.answer, &ignored);
    }
    json_decref(s.answer);
    tool_device_close(&s.device);
    tune_history_close(&s.history);
    return status;
}
