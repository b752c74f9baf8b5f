/* SPDX-License-Identifier: Apache-2.0 */
/* A device's session: the time that each case gets, its candidates, and the proof of the best one. */
#include "tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_COMPILERS    4     /* processes that compile at the same time */
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
#define SAY_MS           5000.0                        /* between lines about a case at work */
#define MAX_PROVEN       3                             /* candidates, the fastest first, until one is */
#define WORTH            (1 - CLMGK_TUNING_LEAST_GAIN) /* a plan takes no entry that gains less */

static const double kind_ends[TUNE_KINDS] = {0.8, 0.95, 1}; /* of the budget; without products all is attention's */

typedef struct session {
    const tune_options *options;
    const tune_setup *setup;
    tune_report *report;
    FILE *history;
    json_t *records;    /* of earlier runs */
    tool_device device; /* for the cache's entries: nothing is run on it */
    size_t compilers;
    json_t *answer; /* the latest one */
    bool ok, late;  /* or why there is none; late: its time was less than a candidate's limit */
    tune_count why;
    const char *message;
    double start_ms;
    double kill_ms; /* of the case at work: no candidate goes on */
    double said_ms; /* when the latest line was printed */
    bool worked;    /* a case had its turn */
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

static int clamp(double number, int low, int high)
{
    return number < low ? low : number > high ? high : (int)number;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

typedef struct job {
    const tune_candidate *x; /* NULL: none; without a ratio that is a number: its space's defaults */
    bool cached;             /* what a plan takes from the cache, in the place of a candidate */
    int pairs;               /* 0: only compile */
    double stop, check_below;
    double limit_ms; /* beside a candidate's */
    double kill_ms;
    tune_child child;
    bool cut; /* by kill_ms */
} job;

static tool_exit start(const session *s, const tune_case *c, job *j, tool_error *error)
{
    const tune_space *space = j->x ? &c->family->spaces[j->x->space] : NULL;
    const bool named = space && space->count > 0 && !isnan(j->x->ratio);
    const double limit = 1e3 * s->options->candidate_s + j->limit_ms, left = j->kill_ms - tool_now_ms();
    j->cut = left < limit;
    return tune_child_start(
        s->setup,
        json_pack("{s:i, s:I, s:I, s:s?, s:s?, s:b, s:i, s:f, s:f}", "kind", (int)c->kind, "group",
                  (json_int_t)c->group, "index", (json_int_t)c->index, "choice", space ? space->name : NULL,
                  "parameters", named ? tune_point_text(space, j->x->values, NULL).text : NULL, "cached",
                  (int)j->cached, "pairs", j->pairs, "stop", j->stop, "check_below", j->check_below),
        fmin(limit, left), &j->child, error);
}

static tool_exit finish(session *s, job *j, tool_error *error)
{
    bool hung = false;
    json_decref(s->answer);
    s->answer = NULL;
    TOOL_TRY(tune_child_finish(s->setup, &j->child, &hung, &s->answer, error));
    s->ok = json_is_true(json_object_get(s->answer, "ok"));
    s->late = hung && j->cut;
    s->why = hung ? TUNE_HUNG : s->answer ? TUNE_FAILED : TUNE_CRASHED;
    s->message = hung ? "no answer in time" : s->answer ? text_of(s->answer, "message") : "the process ended";
    return TOOL_DONE;
}

static tool_exit run(session *s, const tune_case *c, job j, tool_error *error)
{
    TOOL_TRY(start(s, c, &j, error));
    return finish(s, &j, error);
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

/* The least ratio of a case's candidates; 1: none is faster. */
static double best_ratio(const tune_case *c)
{
    const tune_candidate *best = tune_fastest(&c->search, SIZE_MAX);
    return best ? fmin(1, best->ratio) : 1;
}

/* For the search and the history. */
static tool_exit remember(session *s, tune_case *c, const tune_candidate *x, tool_error *error)
{
    const tune_space *space = &c->family->spaces[x->space];
    if (!tune_add(&c->search, x))
        return tool_fail_memory(error, "a measurement");
    return tune_history_add(s->history,
                            json_pack("{s:O, s:s, s:s, s:f, s:o}", "case", c->what, "choice", space->name, "parameters",
                                      tune_point_text(space, x->values, NULL).text, "ratio", x->ratio, "failed",
                                      tool_json_text(x->ratio < 0 ? s->message : NULL)),
                            error);
}

/* The answer on a candidate. Where its time was cut it stays unknown. */
static tool_exit judge(session *s, tune_case *c, tune_candidate *x, tool_error *error)
{
    const bool wrong = s->ok && json_is_true(json_object_get(s->answer, "wrong"));
    x->ratio = s->ok && !wrong ? number_of(s->answer, "ratio") : -1;
    if (s->late)
        return TOOL_DONE;
    c->tried++;
    s->report->counts[TUNE_TRIED]++;
    if (x->ratio < 0)
        s->report->counts[wrong ? TUNE_WRONG : s->why]++;
    else
        s->report->counts[TUNE_SLOW] += json_is_true(json_object_get(s->answer, "slow"));
    return remember(s, c, x, error);
}

/* Times a candidate in turn with the defaults; a new fastest one is checked, too. */
static tool_exit measure(session *s, tune_case *c, const tune_candidate *x, double stop, double kill_ms,
                         tool_error *error)
{
    const double best = best_ratio(c);
    return run(s, c,
               (job){.x = x,
                     .pairs = clamp(PAIR_MS / c->default_ms, 2, MAX_PAIRS),
                     .stop = stop * best,
                     .check_below = fmin(best, WORTH),
                     .limit_ms = LIMIT_RUNS * c->default_ms,
                     .kill_ms = kill_ms},
               error);
}

/* The next few candidates: compiled at the same time, measured one after another. */
static tool_exit try_batch(session *s, tune_case *c, double kill_ms, tool_error *error)
{
    const size_t most = c->kind == TUNE_ATTENTION ? s->compilers : 1;
    tune_candidate batch[MAX_COMPILERS];
    job jobs[MAX_COMPILERS];
    bool good[MAX_COMPILERS];
    size_t count = 0, started = 0;
    tool_exit status = TOOL_DONE;
    while (count < most && tune_propose(&c->search, &batch[count]))
        count++;
    c->finished = count == 0;
    for (; started < count && status == TOOL_DONE; started += status == TOOL_DONE) {
        jobs[started] = (job){.x = &batch[started], .kill_ms = kill_ms};
        status = start(s, c, &jobs[started], error);
    }
    for (size_t i = 0; i < started; i++) {
        const tool_exit finished = finish(s, &jobs[i], error);
        status = status == TOOL_DONE ? finished : status;
        good[i] = s->ok;
        if (!s->ok && status == TOOL_DONE)
            status = judge(s, c, &batch[i], error);
    }
    for (size_t i = 0; i < count && status == TOOL_DONE && tool_now_ms() < kill_ms; i++) {
        if (!good[i])
            continue;
        TOOL_TRY(measure(s, c, &batch[i], STOP_RATIO, kill_ms, error));
        TOOL_TRY(judge(s, c, &batch[i], error));
    }
    return status;
}

/* ---- the result of a case ---------------------------------------------------------------------------------------- */

static void set_result(tune_case *c, const tune_candidate *x, double ratio, tune_outcome outcome)
{
    const tune_space *space = &c->family->spaces[x->space];
    const int32_t *defaults = c->known[x->space] ? c->defaults[x->space].values : NULL;
    snprintf(c->choice, sizeof(c->choice), "%s", space->name);
    snprintf(c->parameters, sizeof(c->parameters), "%s", tune_point_text(space, x->values, defaults).text);
    c->ratio = ratio;
    c->outcome = outcome;
}

/* Faster beyond noise: the median of the ratios with twice its standard error, from the median distance. */
static bool beats_default(double *ratios, size_t count, double *median)
{
    double distance[MAX_PROOF];
    *median = tool_spread_of(ratios, count).median;
    for (size_t i = 0; i < count; i++)
        distance[i] = fabs(ratios[i] - *median);
    const double error = 1.2533 * 1.4826 * tool_spread_of(distance, count).median / sqrt((double)count);
    return *median <= WORTH && *median + 2 * error < 1;
}

/* Compares the best candidate with the defaults once more, and longer. A process has one pair of runs with CLBlast's
 * parameters: several are asked. */
static tool_exit prove(session *s, tune_case *c, tune_candidate best, bool *proven, tool_error *error)
{
    const int pairs = clamp(PROOF_MS / (2 * c->default_ms), MIN_PROOF, MAX_PROOF);
    double ratios[MAX_PROOF];
    size_t count = 0;
    do {
        const double kill_ms = fmax(s->kill_ms, tool_now_ms() + 6 * pairs * c->default_ms);
        const json_t *ratio = NULL;
        size_t i = 0;
        TOOL_TRY(run(
            s, c,
            (job){.x = &best, .pairs = pairs, .stop = 1e9, .limit_ms = LIMIT_RUNS * c->default_ms, .kill_ms = kill_ms},
            error));
        json_array_foreach(json_object_get(s->answer, "ratios"), i, ratio)
        {
            if (count < MAX_PROOF)
                ratios[count++] = json_number_value(ratio);
        }
    } while (s->ok && count < MIN_PROOF);
    *proven = s->ok && beats_default(ratios, count, &best.ratio);
    if (*proven) {
        c->default_ms = number_of(s->answer, "default_ms");
        set_result(c, &best, best.ratio, TUNE_FASTER);
    } else if (!s->late) { /* it only seemed to be faster */
        s->report->counts[TUNE_UNCONFIRMED]++;
        best.ratio = 1;
        return remember(s, c, &best, error);
    }
    return TOOL_DONE;
}

/* The best candidate, if it is faster, or else what was proven before, or else the defaults, into the cache. Where
 * nothing was compared with the defaults, and there was no time for that, there is no result. */
static tool_exit settle(session *s, tune_case *c, double before, bool fair, tool_error *error)
{
    bool proven = false;
    for (int i = 0; i < MAX_PROVEN && !proven && (i == 0 || tool_now_ms() < s->kill_ms); i++) {
        const tune_candidate *fastest = tune_fastest(&c->search, SIZE_MAX);
        if (!fastest || fastest->ratio >= fmin(WORTH, before))
            break;
        TOOL_TRY(prove(s, c, *fastest, &proven, error));
    }
    if (c->outcome == TUNE_UNMEASURED && (c->tried > 0 || c->finished || fair))
        set_result(c, &c->defaults[c->usual], 1, TUNE_DEFAULT);
    if (c->outcome == TUNE_UNMEASURED)
        return TOOL_DONE;
    TOOL_TRY(tune_store(c, error));
    return tune_history_add(s->history,
                            json_pack("{s:O, s:b, s:b, s:s, s:s, s:f, s:f}", "case", c->what, "done", (int)c->finished,
                                      "faster", (int)(c->outcome == TUNE_FASTER), "choice", c->choice, "changes",
                                      c->parameters, "default_ms", c->default_ms, "ratio", c->ratio),
                            error);
}

/* Begins a line about a case on stderr. */
static void say_case(session *s, const tune_case *c)
{
    s->said_ms = tool_now_ms();
    fprintf(stderr, "clmgk-tune: %zu of %zu: ", (size_t)(c - s->report->cases) + 1, s->report->count);
}

/* Ends it. */
static void say_time(const session *s)
{
    fprintf(stderr, "%.0f of %.0f s\n", 1e-3 * (s->said_ms - s->start_ms), s->options->budget_s);
}

/* A line of a case that takes long. */
static void say_progress(session *s, const tune_case *c)
{
    if (tool_now_ms() < s->said_ms + SAY_MS)
        return;
    say_case(s, c);
    fprintf(stderr, "%s: %zu tried, the fastest takes %.2f of the defaults' time; ", c->name, c->tried, best_ratio(c));
    say_time(s);
}

/* ---- the work on a case ------------------------------------------------------------------------------------------ */

static void set_defaults(tune_case *c, const tune_candidate *x)
{
    c->defaults[x->space] = *x;
    c->known[x->space] = true;
}

/* Measures the defaults, the reference for all candidates, and what a plan takes now: from the cache, a bucket near by,
 * or the library's own measurements. c->begun: false if the device can't run them, or there was no time. */
static tool_exit measure_defaults(session *s, tune_case *c, double kill_ms, tool_error *error)
{
    tune_candidate x;
    job both = {.cached = true,
                .pairs = 2,
                .stop = STOP_RATIO,
                .check_below = WORTH,
                .limit_ms = DEFAULT_MORE_MS,
                .kill_ms = kill_ms};
    TOOL_TRY(run(s, c, both, error));
    both.cached = false; /* an entry of the cache may be to blame for a failure */
    if (!s->ok && !s->late)
        TOOL_TRY(run(s, c, both, error));
    c->begun = s->ok;
    c->finished = !s->ok && !s->late; /* for this run: a later one tries again */
    c->outcome = c->finished ? TUNE_REFUSED : c->outcome;
    snprintf(c->message, sizeof(c->message), "%s", s->message);
    if (!c->begun)
        return tune_history_add(s->history,
                                json_pack("{s:O, s:o}", "case", c->what, "message", tool_json_text(c->message)), error);
    c->default_ms = number_of(s->answer, "default_ms");
    if (tune_read(c, json_object_get(s->answer, "usual"), &x)) {
        x.ratio = 1;
        c->usual = x.space;
        set_defaults(c, &x);
        TOOL_TRY(remember(s, c, &x, error));
    } else if (c->kind == TUNE_CLBLAST) {
        tune_set_start(c, s->report->device.device_class);
    }
    return tune_read(c, s->answer, &x) && !(c->known[x.space] && tune_same(&c->search, &x, &c->defaults[x.space]))
               ? judge(s, c, &x, error)
               : TOOL_DONE;
}

/* Measures another choice's defaults: every provider; an engine unless it was much slower in an earlier case. */
static tool_exit look_at_other(session *s, tune_case *c, size_t space, tool_error *error)
{
    tune_candidate x = {.space = space, .ratio = NAN};
    const bool engine = c->kind == TUNE_ATTENTION;
    const double now = tool_now_ms(), guess_ms = now + fmin(OTHER_LIMIT_MS, (s->kill_ms - now) / 2);
    if (c->known[space] || c->kind == TUNE_CLBLAST || c->family->far[space] || !tune_may_try(c, space))
        return TOOL_DONE;
    TOOL_TRY(measure(s, c, &x, OTHER_STOP_RATIO, engine ? guess_ms : s->kill_ms, error));
    const bool known = (s->ok && tune_read(c, s->answer, &x)) || c->family->spaces[space].count == 0;
    if (known)
        TOOL_TRY(judge(s, c, &x, error));
    c->family->far[space] = engine && !(known && x.ratio > 0 && x.ratio < OTHER_STOP_RATIO);
    if (known && !c->family->far[space])
        set_defaults(c, &x);
    return TOOL_DONE;
}

/* One turn of a case: at least one batch of candidates, however little time is left. A later turn continues where this
 * one ended. Where candidates had long enough, and none finished, the defaults are the result. */
static tool_exit take_turn(session *s, tune_case *c, double share_ms, double most_ms, tool_error *error)
{
    const bool first = !c->begun;
    const double start_ms = tool_now_ms();
    if (first)
        TOOL_TRY(measure_defaults(s, c, most_ms, error));
    if (!c->begun)
        return TOOL_DONE;
    const double now = tool_now_ms(), before = first || c->outcome != TUNE_FASTER ? INFINITY : best_ratio(c);
    s->kill_ms = fmin(fmax(start_ms + share_ms, now + LEAST_KILL_MS), most_ms);
    const bool fair = s->kill_ms >= now + LEAST_KILL_MS;
    for (size_t i = 0; first && i < c->family->count; i++)
        TOOL_TRY(look_at_other(s, c, i, error));
    if (first)
        tune_take_starts(s->report, c);
    const double kill_ms = s->kill_ms - (1 - SEARCH_PART) * fmax(0, s->kill_ms - tool_now_ms());
    do {
        TOOL_TRY(try_batch(s, c, kill_ms, error));
        say_progress(s, c);
    } while (!c->finished && tool_now_ms() < fmin(start_ms + SEARCH_PART * share_ms, kill_ms));
    return settle(s, c, before, fair, error);
}

/* ---- the order of cases ------------------------------------------------------------------------------------------ */

/* `left`: cases that have their turn after this one. */
static void announce(session *s, const tune_case *c, size_t left)
{
    say_case(s, c);
    tune_print_case(c, stderr);
    fprintf(stderr, "; %zu tried, %zu to come, ", c->tried, left);
    say_time(s);
}

/* Takes over what earlier runs found: measurements, which help in other cases, too, and results. */
static tool_exit load_history(session *s, tool_error *error)
{
    tune_report *report = s->report;
    tune_candidate x;
    const json_t *record = NULL;
    size_t n = 0;
    json_array_foreach(s->records, n, record)
    {
        const json_t *done = json_object_get(record, "done");
        tune_case *c = report->cases;
        while (c < report->cases + report->count && !json_equal(c->what, json_object_get(record, "case")))
            c++;
        if (c < report->cases + report->count && done) {
            c->outcome = json_is_true(json_object_get(record, "faster")) ? TUNE_FASTER : TUNE_DEFAULT;
            c->finished = json_is_true(done);
            snprintf(c->choice, sizeof(c->choice), "%s", text_of(record, "choice"));
            snprintf(c->parameters, sizeof(c->parameters), "%s", text_of(record, "changes"));
            c->default_ms = number_of(record, "default_ms");
            c->ratio = number_of(record, "ratio");
        } else if (c < report->cases + report->count && tune_read(c, record, &x)) {
            x.ratio = number_of(record, "ratio");
            if (c->search.count == 0 && c->kind != TUNE_CLBLAST) /* its defaults come first */
                set_defaults(c, &x);
            if (!tune_add(&c->search, &x))
                return tool_fail_memory(error, "a measurement");
        }
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

/* All cases of a kind, each with an equal share of the time that is left; what earlier ones did not use goes to later
 * ones. The very first case has its turn however small the budget. *worked: whether any had its turn. */
static tool_exit take_round(session *s, tune_kind kind, int round, double end_ms, bool *worked, tool_error *error)
{
    size_t turns = 0;
    *worked = false;
    for (size_t i = 0; i < s->report->count; i++)
        turns += has_turn(&s->report->cases[i], kind, round);
    for (size_t i = 0; i < s->report->count; i++) {
        tune_case *const c = &s->report->cases[i];
        const double now = tool_now_ms(), most_ms = s->worked ? end_ms : INFINITY;
        if (!has_turn(c, kind, round) || now >= most_ms)
            continue;
        TOOL_TRY(take_turn(s, c, fmax(LEAST_SHARE_MS, (end_ms - now) / (double)turns--), most_ms, error));
        announce(s, c, turns);
        s->worked = *worked = true;
    }
    return TOOL_DONE;
}

static tool_exit take_all(session *s, tool_error *error)
{
    const double budget_s = s->options->budget_s;
    TOOL_TRY(tune_make_cases(s->options, s->device.library, s->report, error));
    fprintf(stderr, "clmgk-tune: %s: %zu %s, budget %.0f s\n", s->report->device.name, s->report->count,
            tool_plural(s->report->count, "case", "cases"), budget_s);
    s->said_ms = tool_now_ms();
    TOOL_TRY(load_history(s, error));
    for (tune_kind kind = TUNE_ATTENTION; kind < TUNE_KINDS; kind++) {
        const double end_ms = s->start_ms + 1e3 * budget_s * (s->options->product_count > 0 ? kind_ends[kind] : 1);
        bool worked = true;
        for (int round = 0; round == 0 || (tool_now_ms() < end_ms && (round < 2 || worked)); round++)
            TOOL_TRY(take_round(s, kind, round, end_ms, &worked, error));
    }
    return TOOL_DONE;
}

/* ---- the session ------------------------------------------------------------------------------------------------- */

/* The folder of the cache, which is made if it is not there, and can be written. */
static tool_exit open_cache(clmgk_tuning_info *info, tool_error *error)
{
    static const char empty[] = "clmgk-tuning 1\n";
    TOOL_TRY(tool_check_library(clmgk_tuning_get_info(NULL, info, &error->library), error));
    if (!info->path[0])
        return tool_fail(error, TOOL_BAD_INPUT,
                         "CLMGK_CACHE_DIR is empty, so that no files are used: expected a folder for what is measured");
    return tool_check_library(clmgk_tuning_import(NULL, empty, sizeof(empty) - 1, NULL, &error->library), error);
}

tool_exit tune_device(const tune_options *options, tune_setup *setup, tune_report *report, tool_error *error)
{
    const clmgk_device_info *info = &report->device;
    session s = {.options = options, .setup = setup, .report = report};
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    tool_exit status = TOOL_DONE;
    s.start_ms = tool_now_ms();
    s.compilers = (size_t)clamp((double)sysconf(_SC_NPROCESSORS_ONLN), 2, MAX_COMPILERS);
    snprintf(setup->selector, sizeof(setup->selector), "%u:%u", info->platform_index, info->device_index);
    TOOL_TRY(open_cache(&cache, error));
    TOOL_TRY_GOTO(status, tune_history_open(cache.path, info, options->resume, &s.history, &s.records, error), done);
    TOOL_TRY_GOTO(status, tool_device_open_info(info, &s.device, error), done);
    status = take_all(&s, error);
done:
    report->spent_s = 1e-3 * (tool_now_ms() - s.start_ms);
    json_decref(s.answer);
    json_decref(s.records);
    tool_device_close(&s.device);
    if (s.history)
        (void)fclose(s.history);
    return status;
}
