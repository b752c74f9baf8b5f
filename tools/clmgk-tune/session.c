/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a device's session share: asking its processes, points as texts, noise. */
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double session_spent_s(const session *s)
{
    return 1e-3 * (tool_now_ms() - s->start_ms);
}

/* ---- asking the processes ------------------------------------------------------------------------------------------
 */

const char *session_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double session_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

tool_exit session_receive(const session *s, size_t child, double more_ms, said *reply, tool_error *error)
{
    tune_reply how = TUNE_DIED;
    const double limit_ms = 1e3 * s->options->candidate_s + more_ms;
    memset(reply, 0, sizeof(*reply));
    TOOL_TRY(tune_child_receive(s->children[child], limit_ms, &how, &reply->answer, error));
    reply->ok = how == TUNE_ANSWERED && json_is_true(json_object_get(reply->answer, "ok"));
    if (!reply->ok) {
        snprintf(reply->why, sizeof(reply->why), "%s",
                 how == TUNE_HUNG   ? "hung"
                 : how == TUNE_DIED ? "died"
                                    : "refused");
        snprintf(reply->message, sizeof(reply->message), "%s",
                 how == TUNE_HUNG   ? "no answer in time"
                 : how == TUNE_DIED ? "the process ended"
                                    : session_text(reply->answer, "message"));
    }
    return TOOL_DONE;
}

tool_exit session_ask(const session *s, json_t *job, double more_ms, said *reply, tool_error *error)
{
    TOOL_TRY(tune_child_send(s->children[0], job, error));
    return session_receive(s, 0, more_ms, reply, error);
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
    for (size_t i = tune_history_count(s->history); i > 0; i--) {
        const json_t *record = tune_history_record(s->history, i - 1);
        if (json_object_get(record, "done") && strcmp(session_text(record, "case"), key) == 0)
            return record;
    }
    return NULL;
}

/* ---- points and texts ----------------------------------------------------------------------------------------------
 */

tool_exit session_list_tunables(const char *table, clmgk_tunable *tunables, tune_parameter *parameters, size_t *count,
                                tool_error *error)
{
    clmgk_error failure = {0};
    const size_t first = *count;
    size_t more = 0;
    if (clmgk_tunable_list(table, tunables + first, TUNE_MOST_PARAMETERS - first, &more, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    if (more > TUNE_MOST_PARAMETERS - first)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "table %s: more tunables than this program knows", table);
    *count += more;
    for (size_t i = first; i < *count; i++)
        parameters[i] = (tune_parameter){tunables[i].name, tunables[i].values, tunables[i].value_count};
    return TOOL_DONE;
}

void session_print_point(const tune_parameter *parameters, size_t count, const int32_t *values, const int32_t *defaults,
                         char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        if (!defaults || values[i] != defaults[i])
            length += (size_t)snprintf(text + length, length < size ? size - length : 0, "%s%s=%d", length ? "," : "",
                                       parameters[i].name, (int)values[i]);
    }
}

bool session_read_point(const tune_parameter *parameters, size_t count, const char *text, int32_t *values)
{
    size_t found = 0;
    while (text && *text) {
        const size_t length = strcspn(text, "=");
        for (size_t i = 0; i < count; i++) {
            if (strlen(parameters[i].name) == length && strncmp(parameters[i].name, text, length) == 0) {
                values[i] = (int32_t)strtol(text + length + 1, NULL, 10);
                found++;
            }
        }
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return found == count;
}

/* ---- noise --------------------------------------------------------------------------------------------------------
 */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Faster beyond noise: the median of the ratios with twice its standard error, from the median distance. */
bool session_beats_default(const json_t *ratios, double *median)
{
    double number[MAX_CONFIRM], distance[MAX_CONFIRM];
    const size_t count = json_array_size(ratios) < MAX_CONFIRM ? json_array_size(ratios) : MAX_CONFIRM;
    if (count < MIN_CONFIRM)
        return false;
    for (size_t i = 0; i < count; i++)
        number[i] = json_number_value(json_array_get(ratios, i));
    qsort(number, count, sizeof(*number), ascending);
    *median = count % 2 ? number[count / 2] : 0.5 * (number[count / 2 - 1] + number[count / 2]);
    for (size_t i = 0; i < count; i++)
        distance[i] = fabs(number[i] - *median);
    qsort(distance, count, sizeof(*distance), ascending);
    const double error = 1.2533 * 1.4826 * distance[count / 2] / sqrt((double)count);
    return *median <= 1 - LEAST_CONFIRMED && *median + 2 * error < 1;
}

void session_staging(const session *s, char *path, size_t size)
{
    snprintf(path, size, "%s/staging", s->folder);
}
