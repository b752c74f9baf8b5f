/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates: compiled, timed and checked in another process, told to the search, kept in the history. */
#include "attention.h"

#include <string.h>

#define STOP_RATIO 1.15 /* slower than that by the first pair of runs: no second */
#define PAIR_MS    60.0 /* runs of a candidate */
#define MAX_PAIRS  5

clmgk_tuned_pass candidate_pass(const bench_case *item)
{
    return item->pass == BENCH_BACKWARD ? CLMGK_TUNED_BACKWARD : CLMGK_TUNED_FORWARD;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

bool candidate_read(const tuned_case *c, const json_t *object, candidate *found)
{
    found->space = 0;
    while (found->space + 1 < c->set->count &&
           strcmp(session_text(object, "engine"), c->set->spaces[found->space].name) != 0)
        found->space++;
    return session_read_point(&c->set->spaces[found->space].points, session_text(object, "parameters"), found->values);
}

bool candidate_equal(const tuned_case *c, const candidate *a, const candidate *b)
{
    return a->space == b->space &&
           memcmp(a->values, b->values, c->set->spaces[a->space].points.count * sizeof(*a->values)) == 0;
}

point_text candidate_text(const tuned_case *c, const candidate *x, bool all)
{
    return session_point_text(&c->set->spaces[x->space].points, x->values, all ? NULL : c->defaults[x->space].values);
}

static json_t *candidate_json(const tuned_case *c, const candidate *x, bool defaults)
{
    return json_pack("{s:s, s:s}", "engine", c->set->spaces[x->space].name, "parameters",
                     defaults ? "" : candidate_text(c, x, true).text);
}

/* ---- asking the process, telling the search and the history ------------------------------------------------------ */

static void say_step(const tuned_case *c, const char *job)
{
    static const char *const steps[][2] = {{"compile", "compiling"},
                                           {"default", "measuring the defaults"},
                                           {"measure", "measuring a candidate"},
                                           {"check", "checking a candidate against double precision"},
                                           {"confirm", "measuring the best candidate again"}};
    char name[96];
    tune_case_name(c->item, name, sizeof(name));
    for (size_t i = 0; i < TOOL_COUNT(steps); i++) {
        if (strcmp(job, steps[i][0]) == 0)
            session_say(c->base, name, steps[i][1]);
    }
}

tool_exit candidate_send(const tuned_case *c, size_t child, const char *job, json_t *extra, tool_error *error)
{
    say_step(c, job);
    json_t *object =
        json_pack("{s:s, s:I, s:I}", "job", job, "group", (json_int_t)c->group, "case", (json_int_t)c->index);
    return tune_child_send(c->base->children[child], tool_json_merge(object, extra ? extra : json_object()), error);
}

tool_exit candidate_ask(const tuned_case *c, const char *job, json_t *extra, tool_error *error)
{
    TOOL_TRY(candidate_send(c, 0, job, extra, error));
    return session_receive(c->base, 0, c->more_ms, error);
}

tool_exit candidate_tell(const tuned_case *c, const candidate *x, tool_error *error)
{
    const double seconds = x->ratio > 0 ? 1e-3 * x->ratio * c->default_ms : -1;
    return tune_search_tell(c->set->search[c->item->pass], c->number, x->space, x->values, seconds)
               ? TOOL_DONE
               : tool_fail_memory(error, "a measurement");
}

/* `why` is NULL for a candidate that did not fail. */
static tool_exit remember(const tuned_case *c, const candidate *x, const char *why, const char *message,
                          tool_error *error)
{
    json_t *outcome = json_pack("{s:s, s:o, s:s?, s:o}", "case", c->result->key, "ratio", tool_json_number(x->ratio),
                                "failed", why, "message", why ? tool_json_text(message) : json_null());
    return tune_history_add(c->base->history, tool_json_merge(candidate_json(c, x, false), outcome), error);
}

static tool_exit remember_failure(tuned_case *c, candidate *x, const char *why, const char *message, tool_error *error)
{
    session_count_failure(c->base, why);
    x->ratio = -1;
    return remember(c, x, why, message, error);
}

tool_exit candidate_recall(const tuned_case *c, candidate *best, tool_error *error)
{
    *best = (candidate){.ratio = 1};
    const json_t *record = NULL;
    size_t i = 0;
    json_array_foreach(tune_history_records(c->base->history), i, record)
    {
        candidate x;
        if (strcmp(session_text(record, "case"), c->result->key) != 0 || json_object_get(record, "done") ||
            !candidate_read(c, record, &x) || !c->available[x.space])
            continue;
        const bool failed = json_is_string(json_object_get(record, "failed"));
        x.ratio = failed ? -1 : session_number(record, "ratio");
        TOOL_TRY(candidate_tell(c, &x, error));
        if (failed && candidate_equal(c, &x, best))
            best->ratio = 1; /* it was measured first, and found wrong then */
        if (!failed && x.ratio < best->ratio)
            *best = x;
    }
    return TOOL_DONE;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static void count_tried(tuned_case *c)
{
    c->base->report->counts.tried++;
    c->result->tried++;
}

tool_exit candidate_measure(tuned_case *c, candidate *x, bool defaults, double stop, tool_error *error)
{
    const session_reply *const reply = &c->base->reply;
    json_t *limits = json_pack("{s:I, s:f}", "pairs", session_clamp(PAIR_MS / c->default_ms, 2, MAX_PAIRS), "stop",
                               stop * c->best.ratio);
    TOOL_TRY(candidate_ask(c, "measure", tool_json_merge(candidate_json(c, x, defaults), limits), error));
    count_tried(c);
    /* the other engines' defaults have less time */
    const bool slow =
        reply->ok ? json_is_true(json_object_get(reply->answer, "slow")) : defaults && strcmp(reply->why, "hung") == 0;
    c->base->report->counts.slow += slow;
    if (!reply->ok && !slow)
        session_count_failure(c->base, reply->why);
    x->ratio = reply->ok ? session_number(reply->answer, "ratio") : -1;
    if (!defaults)
        return remember(c, x, reply->ok ? NULL : reply->why, reply->message, error);
    if (reply->ok &&
        !session_read_point(&c->set->spaces[x->space].points, session_text(reply->answer, "parameters"), x->values))
        x->ratio = -1;
    return TOOL_DONE;
}

tool_exit candidate_check(tuned_case *c, candidate *x, tool_error *error)
{
    const session_reply *const reply = &c->base->reply;
    TOOL_TRY(candidate_ask(c, "check", candidate_json(c, x, false), error));
    if (!reply->ok)
        return remember_failure(c, x, reply->why, reply->message, error);
    if (json_is_true(json_object_get(reply->answer, "wrong")))
        return remember_failure(c, x, "wrong", session_text(reply->answer, "message"), error);
    return TOOL_DONE;
}

tool_exit candidate_try(tuned_case *c, candidate *x, tool_error *error)
{
    TOOL_TRY(candidate_measure(c, x, false, STOP_RATIO, error));
    if (x->ratio > 0 && x->ratio < c->best.ratio && x->ratio < 1 - LEAST_CONFIRMED)
        TOOL_TRY(candidate_check(c, x, error));
    if (x->ratio > 0 && x->ratio < c->best.ratio)
        c->best = *x;
    return candidate_tell(c, x, error);
}

/* ---- several at a time ------------------------------------------------------------------------------------------- */

/* Candidates that are compiled at the same time, to be measured one after another. */
typedef struct batch {
    size_t count;
    candidate candidates[MAX_COMPILERS];
    bool failed[MAX_COMPILERS];
} batch;

static tool_exit choose_batch(const tuned_case *c, batch *chosen, tool_error *error)
{
    tune_search *const search = c->set->search[c->item->pass];
    for (chosen->count = 0; chosen->count < c->base->compilers; chosen->count++) {
        candidate *const x = &chosen->candidates[chosen->count];
        const tune_proposal answer = tune_search_next(search, c->number, &x->space, x->values);
        if (answer == TUNE_FAILED)
            return tool_fail_memory(error, "a proposal");
        if (answer != TUNE_MEASURE)
            break;
    }
    return TOOL_DONE;
}

static tool_exit compile_batch(tuned_case *c, batch *chosen, tool_error *error)
{
    const session_reply *const reply = &c->base->reply;
    for (size_t i = 0; i < chosen->count; i++)
        TOOL_TRY(candidate_send(c, i, "compile", candidate_json(c, &chosen->candidates[i], false), error));
    for (size_t i = 0; i < chosen->count; i++) {
        TOOL_TRY(session_receive(c->base, i, c->more_ms, error));
        chosen->failed[i] = !reply->ok;
        if (reply->ok)
            continue;
        count_tried(c);
        TOOL_TRY(remember_failure(c, &chosen->candidates[i], reply->why, reply->message, error));
        TOOL_TRY(candidate_tell(c, &chosen->candidates[i], error));
    }
    return TOOL_DONE;
}

tool_exit candidate_try_batch(tuned_case *c, tool_error *error)
{
    batch chosen;
    TOOL_TRY(choose_batch(c, &chosen, error));
    TOOL_TRY(compile_batch(c, &chosen, error));
    for (size_t i = 0; i < chosen.count; i++) {
        if (!chosen.failed[i])
            TOOL_TRY(candidate_try(c, &chosen.candidates[i], error));
    }
    c->finished = chosen.count == 0;
    return TOOL_DONE;
}
