/* SPDX-License-Identifier: Apache-2.0 */
/* Two objects of --json: what became slower or faster beyond noise. */
#include "bench.h"

#include <math.h>
#include <string.h>

static const char *device_name(const json_t *object, const json_t *one)
{
    const size_t index = (size_t)json_integer_value(json_object_get(one, "device"));
    return json_string_value(json_object_get(json_array_get(json_object_get(object, "devices"), index), "name"));
}

/* What an older object lacks is what a case has not. */
static bool same_value(const json_t *old, const json_t *one)
{
    const bool absent = !old || json_is_null(old);
    return absent ? !one || json_is_null(one) : json_equal(old, one);
}

/* Engine and parameters may have been tuned meanwhile. */
bool bench_is_same_work(const json_t *old, const json_t *one)
{
    static const char *const keys[] = {"variant",   "dtype",      "dtype_k",  "dtype_v",    "dtype_o", "pass",
                                       "batch",     "heads",      "kv_heads", "components", "length",  "length_k",
                                       "head_size", "value_size", "causal",   "gradients",  "window",  "sequences",
                                       "bias",      "alibi",      "sinks",    "dropout",    "feature", "features",
                                       "state",     "precision",  "softcap",  "score_mod",  "mask_mod"};
    for (size_t i = 0; i < TOOL_COUNT(keys); i++) {
        if (!same_value(json_object_get(old, keys[i]), json_object_get(one, keys[i])))
            return false;
    }
    return true;
}

/* Whether two cases measure the same work on the same device. */
static bool same_case(const json_t *before, const json_t *old, const json_t *now, const json_t *one)
{
    return bench_is_same_work(old, one) && strcmp(device_name(before, old), device_name(now, one)) == 0;
}

/* The case of `other` that measures the same as `one` of `object`; NULL: it has none. */
static const json_t *find_case(const json_t *other, const json_t *object, const json_t *one)
{
    size_t index;
    const json_t *found;
    json_array_foreach(json_object_get(other, "cases"), index, found)
    {
        if (same_case(other, found, object, one))
            return found;
    }
    return NULL;
}

/* Cases of `object` that `other` lacks. */
static int count_lacking(const json_t *object, const json_t *other)
{
    int count = 0;
    size_t index;
    const json_t *one;
    json_array_foreach(json_object_get(object, "cases"), index, one) count += !find_case(other, object, one);
    return count;
}

void bench_read_time(const json_t *one, double *median, double *noise)
{
    const json_t *time = json_object_get(one, "time_ms");
    *median = tool_json_number_of(time, "median");
    *noise = (*median - tool_json_number_of(time, "min")) / *median;
}

static int int_of(const json_t *one, const char *key)
{
    return (int)json_integer_value(json_object_get(one, key));
}

void bench_name_case(const json_t *one, char *name, size_t size)
{
    const bool has_text =
        json_is_string(json_object_get(one, "score_mod")) || json_is_string(json_object_get(one, "mask_mod"));
    snprintf(name, size, "%-13s %-8s M %d %2d heads %-4s N %-6d S %-6d D %-4d%s%s%s", tool_json_text_of(one, "variant"),
             tool_json_text_of(one, "pass"), int_of(one, "components"), int_of(one, "heads"),
             tool_json_text_of(one, "dtype"), int_of(one, "length"), int_of(one, "length_k"), int_of(one, "head_size"),
             json_is_true(json_object_get(one, "causal")) ? " causal" : "       ",
             json_is_array(json_object_get(one, "window")) ? " window" : "       ", has_text ? " text" : "");
}

static void print_change(const json_t *one, double old_ms, double new_ms, const char *word, FILE *stream)
{
    char name[128];
    bench_name_case(one, name, sizeof name);
    fprintf(stream, "  %s %10.3f -> %10.3f ms  %+6.1f %%  %s\n", name, old_ms, new_ms, 100 * (new_ms / old_ms - 1),
            word);
}

typedef struct tally {
    int compared, slower, faster, regressions;
} tally;

static void compare_case(const json_t *old, const json_t *one, double threshold, tally *count, FILE *stream)
{
    double old_ms = 0, new_ms = 0, old_noise = 0, new_noise = 0;
    bench_read_time(old, &old_ms, &old_noise);
    bench_read_time(one, &new_ms, &new_noise);
    const double change = new_ms / old_ms - 1;
    count->compared++;
    if (fmax(new_ms / old_ms, old_ms / new_ms) - 1 <= old_noise + new_noise)
        return;
    if (change > threshold) {
        count->regressions++;
        print_change(one, old_ms, new_ms, "REGRESSION", stream);
    } else if (change > 0) {
        count->slower++;
        print_change(one, old_ms, new_ms, "slower", stream);
    } else {
        count->faster++;
        print_change(one, old_ms, new_ms, "faster", stream);
    }
}

/* Whether a device of one object is one of the other's. */
bool bench_share_a_device(const json_t *before, const json_t *now)
{
    size_t i, n;
    const json_t *old, *one;
    json_array_foreach(json_object_get(before, "devices"), i, old)
    {
        json_array_foreach(json_object_get(now, "devices"), n, one)
        {
            if (json_equal(json_object_get(old, "name"), json_object_get(one, "name")))
                return true;
        }
    }
    return false;
}

tool_exit bench_compare(const json_t *before, const char *path, const json_t *now, double threshold, FILE *stream,
                        tool_error *error)
{
    tally count = {0};
    size_t index;
    const json_t *one;
    fprintf(stream, "\nAgainst the earlier run, changes beyond noise:\n");
    json_array_foreach(json_object_get(now, "cases"), index, one)
    {
        const json_t *const old = find_case(before, now, one);
        if (old)
            compare_case(old, one, threshold, &count, stream);
    }
    const int lacking = count_lacking(before, now);
    fprintf(stream, "  %d %s compared: %d faster, %d slower, %d slower by more than %g %%; %d not in the earlier run\n",
            count.compared, tool_plural((uint64_t)count.compared, "case", "cases"), count.faster, count.slower,
            count.regressions, 100 * threshold, count_lacking(now, before));
    if (lacking)
        fprintf(stream, "  %d %s of the earlier run %s not in this run\n", lacking,
                tool_plural((uint64_t)lacking, "case", "cases"), tool_plural((uint64_t)lacking, "is", "are"));
    if (!count.compared)
        return tool_fail(error, TOOL_CHECK_FAILED, "--compare %s: has no case in common with this run", path);
    if (count.regressions)
        return tool_fail(error, TOOL_CHECK_FAILED, "%d of %d cases became slower by more than %g %%", count.regressions,
                         count.compared, 100 * threshold);
    return TOOL_DONE;
}
