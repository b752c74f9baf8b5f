/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept of a case: the best candidate, proven through the public interface, or the defaults. */
#include "attention.h"

#include <string.h>

#define CONFIRM_MS 1500.0 /* runs of the winner */

static void set_result(tuned_case *c, const candidate *x)
{
    tune_result *const result = c->result;
    snprintf(result->engine, sizeof(result->engine), "%s", c->set->spaces[x->space].name);
    snprintf(result->parameters, sizeof(result->parameters), "%s", candidate_text(c, x, false).text);
    result->tuned_ms = x->ratio * result->default_ms;
    result->ratio = x->ratio;
}

static tool_exit store(const tuned_case *c, const char *cache_dir, tool_error *error)
{
    const clmgk_tuned tuned = {.choice = c->result->engine,
                               .parameters = c->result->parameters,
                               .time_ms = c->result->tuned_ms,
                               .default_ms = c->result->default_ms};
    return tool_check_library(clmgk_tuning_store(c->base->device.library, cache_dir, &c->item->desc,
                                                 candidate_pass(c->item), &tuned, &error->library),
                              error);
}

/* Compares a plan that finds the values in a cache with the defaults. */
static tool_exit confirm(tuned_case *c, bool *confirmed, tool_error *error)
{
    const session_reply *const reply = &c->base->reply;
    TOOL_TRY(store(c, c->base->staging, error));
    TOOL_TRY(candidate_ask(c, "confirm",
                           json_pack("{s:s+, s:I}", "tuning_dir", c->base->staging, "/tuning", "pairs",
                                     session_clamp(CONFIRM_MS / (2 * c->default_ms), MIN_CONFIRM, MAX_CONFIRM)),
                           error));
    candidate taken;
    const bool reached = reply->ok && strcmp(session_text(reply->answer, "tuning"), "bucket") == 0 &&
                         candidate_read(c, reply->answer, &taken) && candidate_equal(c, &taken, &c->best);
    ratio_list ratios = {.count = 0};
    size_t index = 0;
    const json_t *ratio = NULL;
    json_array_foreach(json_object_get(reply->answer, "ratios"), index, ratio)
        session_add_ratio(&ratios, json_number_value(ratio));
    *confirmed = reached && session_beats_default(&ratios, &taken.ratio);
    if (*confirmed) {
        c->result->default_ms = session_number(reply->answer, "default_ms");
        set_result(c, &taken);
    }
    return TOOL_DONE;
}

tool_exit decision_settle(tuned_case *c, tool_error *error)
{
    const tune_result before = *c->result;
    const bool proven = before.outcome == TUNE_FASTER;
    bool keep = c->best.ratio < 1 - LEAST_CONFIRMED;
    if (keep) {
        set_result(c, &c->best); /* a plan takes no entry that gains less */
        TOOL_TRY(confirm(c, &keep, error));
        if (!keep) { /* it only seemed to be faster than what this case has proven before, or than the defaults */
            candidate unconfirmed = c->best;
            unconfirmed.ratio = 1;
            c->base->report->counts.unconfirmed++;
            c->best.ratio = proven ? before.ratio : 1;
            TOOL_TRY(candidate_tell(c, &unconfirmed, error));
        }
    }
    if (!keep && proven)
        *c->result = before;
    else if (!keep)
        set_result(c, &c->defaults[c->usual]);
    c->result->outcome = keep || proven ? TUNE_FASTER : TUNE_DEFAULT;
    TOOL_TRY(store(c, NULL, error));
    TOOL_TRY(store(c, c->base->staging, error));
    return decision_remember(c, error);
}

tool_exit decision_remember(const tuned_case *c, tool_error *error)
{
    const tune_result *result = c->result;
    const candidate *usual = &c->defaults[c->usual];
    return tune_history_add(c->base->history,
                            json_pack("{s:b, s:b, s:b, s:s, s:b, s:s, s:s, s:f, s:f, s:f, s:{s:s, s:s}}", "done", 1,
                                      "refused", (int)(result->outcome == TUNE_REFUSED), "finished", (int)c->finished,
                                      "case", result->key, "faster", (int)(result->outcome == TUNE_FASTER), "engine",
                                      result->engine, "parameters", result->parameters, "default_ms",
                                      result->default_ms, "ms", result->tuned_ms, "ratio", result->ratio, "usual",
                                      "engine", c->set->spaces[c->usual].name, "parameters",
                                      c->available[c->usual] ? candidate_text(c, usual, true).text : ""),
                            error);
}

const json_t *decision_recall(tuned_case *c)
{
    tune_result *const result = c->result;
    const json_t *record = session_find_done(c->base, result->key);
    if (!record || json_is_true(json_object_get(record, "refused")))
        return NULL;
    result->outcome = json_is_true(json_object_get(record, "faster")) ? TUNE_KNOWN_FASTER : TUNE_KNOWN_DEFAULT;
    snprintf(result->engine, sizeof(result->engine), "%s", session_text(record, "engine"));
    snprintf(result->parameters, sizeof(result->parameters), "%s", session_text(record, "parameters"));
    result->default_ms = session_number(record, "default_ms");
    result->tuned_ms = session_number(record, "ms");
    result->ratio = session_number(record, "ratio");
    return record;
}
