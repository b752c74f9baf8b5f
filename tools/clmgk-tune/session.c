/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a device's session share: asking its processes, points as texts, noise. */
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUIET_MS 3000.0 /* between two lines of progress */

double session_spent_s(const session *s)
{
    return 1e-3 * (tool_now_ms() - s->start_ms);
}

void session_say(session *s, const char *subject, const char *step)
{
    const double now = tool_now_ms();
    if (now - s->said_ms < QUIET_MS)
        return;
    fprintf(stderr, "clmgk-tune: %s: %s\n", subject, step);
    s->said_ms = now;
}

const char *session_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double session_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

tool_exit session_receive(session *s, size_t child, double more_ms, tool_error *error)
{
    static const char *const why[] = {[TUNE_ANSWERED] = "refused", [TUNE_DIED] = "died", [TUNE_HUNG] = "hung"};
    tune_reply outcome = TUNE_DIED;
    session_reply *const reply = &s->reply;
    json_decref(reply->answer);
    *reply = (session_reply){.ok = false};
    TOOL_TRY(tune_child_receive(s->children[child], 1e3 * s->options->candidate_s + more_ms, &outcome, &reply->answer,
                                error));
    reply->ok = outcome == TUNE_ANSWERED && json_is_true(json_object_get(reply->answer, "ok"));
    reply->why = why[outcome];
    snprintf(reply->message, sizeof(reply->message), "%s",
             outcome == TUNE_HUNG   ? "no answer in time"
             : outcome == TUNE_DIED ? "the process ended"
                                    : session_text(reply->answer, "message"));
    return TOOL_DONE;
}

tool_exit session_ask(session *s, size_t child, json_t *job, double more_ms, tool_error *error)
{
    TOOL_TRY(tune_child_send(s->children[child], job, error));
    return session_receive(s, child, more_ms, error);
}

void session_count_failure(session *s, const char *why)
{
    tune_counts *counts = &s->report->counts;
    if (strcmp(why, "hung") == 0)
        counts->hung++;
    else if (strcmp(why, "died") == 0)
        counts->died++;
    else if (strcmp(why, "wrong") == 0)
        counts->wrong++;
    else
        counts->failed++;
}

const json_t *session_find_done(const session *s, const char *key)
{
    const json_t *record = NULL, *last = NULL;
    size_t i = 0;
    json_array_foreach(tune_history_records(s->history), i,
                       record) if (json_object_get(record, "done") && strcmp(session_text(record, "case"), key) == 0)
        last = record;
    return last;
}

json_int_t session_clamp(double number, int low, int high)
{
    return number < low ? low : number > high ? high : (json_int_t)number;
}

tool_exit session_add_tunables(const char *table, point_space *space, tool_error *error)
{
    const size_t room = TUNE_MOST_PARAMETERS - space->count;
    size_t more = 0;
    if (room > 0)
        space->tunables[space->count] = (clmgk_tunable)CLMGK_TUNABLE_INIT;
    TOOL_TRY(tool_check_library(clmgk_tunable_list(table, space->tunables + space->count, room, &more, &error->library),
                                error));
    if (more > room)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "table %s: more tunables than this program knows", table);
    for (; more > 0; more--, space->count++) {
        const clmgk_tunable *tunable = &space->tunables[space->count];
        space->parameters[space->count] = (tune_parameter){tunable->name, tunable->values, tunable->value_count};
    }
    return TOOL_DONE;
}

point_text session_point_text(const point_space *space, const int32_t *values, const int32_t *defaults)
{
    point_text list = {""};
    size_t length = 0;
    for (size_t i = 0; i < space->count && length < sizeof(list.text); i++) {
        if (!defaults || values[i] != defaults[i])
            length += (size_t)snprintf(list.text + length, sizeof(list.text) - length, "%s%s=%d", length ? "," : "",
                                       space->parameters[i].name, (int)values[i]);
    }
    return list;
}

bool session_read_point(const point_space *space, const char *text, int32_t *values)
{
    size_t found = 0;
    while (*text) {
        const size_t length = strcspn(text, "=");
        for (size_t i = 0; i < space->count; i++) {
            const char *name = space->parameters[i].name;
            if (strlen(name) == length && strncmp(name, text, length) == 0) {
                values[i] = (int32_t)strtol(text + length + 1, NULL, 10);
                found++;
            }
        }
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return found == space->count;
}

void session_add_ratio(ratio_list *ratios, double ratio)
{
    if (ratios->count < MAX_CONFIRM)
        ratios->ratio[ratios->count++] = ratio;
}

/* Faster beyond noise: the median of the ratios with twice its standard error, from the median distance. */
bool session_beats_default(const ratio_list *ratios, double *median)
{
    double number[MAX_CONFIRM], distance[MAX_CONFIRM];
    if (ratios->count < MIN_CONFIRM)
        return false;
    memcpy(number, ratios->ratio, sizeof(number));
    *median = tool_spread_of(number, ratios->count).median;
    for (size_t i = 0; i < ratios->count; i++)
        distance[i] = fabs(number[i] - *median);
    (void)tool_spread_of(distance, ratios->count); /* sorts them */
    const double error = 1.2533 * 1.4826 * distance[ratios->count / 2] / sqrt((double)ratios->count);
    return *median <= 1 - LEAST_CONFIRMED && *median + 2 * error < 1;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

json_t *session_product_job(const tool_product *shape, const char *provider, const char *parameters, int runs)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:b, s:b, s:i, s:i, s:s?, s:s?, s:b, s:i}", "job", "product", "m",
                     (json_int_t)shape->m, "n", (json_int_t)shape->n, "k", (json_int_t)shape->k, "a",
                     (int)shape->transpose_a, "b", (int)shape->transpose_b, "dtype", (int)shape->dtype, "precision",
                     (int)shape->precision, "provider", provider, "parameters", parameters, "untuned",
                     parameters != NULL, "runs", runs);
}

tool_exit session_time_product(session *s, size_t child, json_t *job, double *ms, tool_error *error)
{
    TOOL_TRY(session_ask(s, child, job, 0, error));
    *ms = s->reply.ok ? session_number(s->reply.answer, "ms") : -1;
    return TOOL_DONE;
}

tool_exit session_check_product(session *s, size_t child, const tool_product *type, const char *provider,
                                const char *parameters, bool *right, tool_error *error)
{
    TOOL_TRY(session_ask(s, child,
                         json_pack("{s:s, s:i, s:i, s:s, s:s?, s:b}", "job", "product-check", "dtype", (int)type->dtype,
                                   "precision", (int)type->precision, "provider", provider, "parameters", parameters,
                                   "untuned", parameters != NULL),
                         0, error));
    *right = s->reply.ok && !json_is_true(json_object_get(s->reply.answer, "wrong"));
    if (!*right)
        session_count_failure(s, s->reply.ok ? "wrong" : s->reply.why);
    return TOOL_DONE;
}
