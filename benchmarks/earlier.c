/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of earlier runs: read from files, and checked for all that a comparison takes from them. */
#include "bench.h"

#include "input_file.h"

#include <ctype.h>
#include <stdlib.h>

#define MAX_FILE_BYTES ((size_t)256 << 20)

/* An element of a list in a file. */
typedef struct element {
    const char *path, *list;
    size_t index;
} element;

/* Says which value of the element (NULL: itself) is wrong. */
static tool_exit fail_value(const element *at, const char *key, const char *expected, tool_error *error)
{
    return tool_fail(error, TOOL_BAD_INPUT, "--compare %s: %s[%zu]%s%s: expected %s", at->path, at->list, at->index,
                     key ? "." : "", key ? key : "", expected);
}

static tool_exit check_device(const element *at, const json_t *device, tool_error *error)
{
    if (!json_is_object(device))
        return fail_value(at, NULL, "an object", error);
    return json_is_string(json_object_get(device, "name")) ? TOOL_DONE : fail_value(at, "name", "a text", error);
}

/* Names of variants, types and passes, also of later versions. */
static bool is_name(const char *text)
{
    bool good = text && *text;
    for (; good && *text; text++)
        good = isalnum((unsigned char)*text) || *text == '-' || *text == '_';
    return good;
}

static tool_exit check_key(const element *at, const json_t *one, tool_error *error)
{
    static const char *const names[] = {"variant", "dtype", "pass"};
    static const char *const sizes[] = {"components", "heads", "length", "length_k", "head_size"};
    for (size_t i = 0; i < TOOL_COUNT(names); i++) {
        if (!is_name(tool_json_text_of(one, names[i])))
            return fail_value(at, names[i], "a name", error);
    }
    for (size_t i = 0; i < TOOL_COUNT(sizes); i++) {
        const json_int_t size = json_integer_value(json_object_get(one, sizes[i]));
        if (size < 1 || size > INT32_MAX)
            return fail_value(at, sizes[i], "a whole number from 1 to 2147483647", error);
    }
    return json_is_boolean(json_object_get(one, "causal")) ? TOOL_DONE
                                                           : fail_value(at, "causal", "true or false", error);
}

static tool_exit check_time(const element *at, const json_t *one, tool_error *error)
{
    static const char *const keys[] = {"time_ms.min", "time_ms.median", "time_ms.max"};
    const json_t *const time = json_object_get(one, "time_ms");
    double last = 0;
    for (size_t i = 0; i < TOOL_COUNT(keys); i++) {
        const double value = tool_json_number_of(time, keys[i] + sizeof "time_ms");
        if (!(value > 0))
            return fail_value(at, keys[i], "a number above 0", error);
        if (value < last)
            return fail_value(at, keys[i], i == 1 ? "at least min" : "at least the median", error);
        last = value;
    }
    return TOOL_DONE;
}

static tool_exit check_case(const element *at, const json_t *one, size_t device_count, tool_error *error)
{
    if (!json_is_object(one))
        return fail_value(at, NULL, "an object", error);
    const json_t *const device = json_object_get(one, "device");
    const json_int_t index = json_integer_value(device);
    if (!json_is_integer(device) || index < 0 || (json_int_t)device_count <= index)
        return fail_value(at, "device", "the index of an element of \"devices\"", error);
    TOOL_TRY(check_key(at, one, error));
    return check_time(at, one, error);
}

static tool_exit check_object(const char *path, const json_t *object, tool_error *error)
{
    const json_t *const devices = json_object_get(object, "devices"), *const cases = json_object_get(object, "cases");
    if (!json_is_array(devices) || !json_is_array(cases))
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--compare %s: no lists \"devices\" and \"cases\": expected an object of --json", path);
    for (size_t i = 0; i < json_array_size(devices); i++)
        TOOL_TRY(check_device(&(element){path, "devices", i}, json_array_get(devices, i), error));
    for (size_t i = 0; i < json_array_size(cases); i++)
        TOOL_TRY(check_case(&(element){path, "cases", i}, json_array_get(cases, i), json_array_size(devices), error));
    return TOOL_DONE;
}

tool_exit bench_load_json(const char *path, json_t **out, tool_error *error)
{
    json_error_t where;
    char *text = NULL;
    size_t length = 0;
    TOOL_TRY(tool_read_input("compare", path, MAX_FILE_BYTES, &text, &length, error));
    json_t *const object = json_loadb(text, length, 0, &where);
    free(text);
    if (!object)
        return tool_fail(error, TOOL_BAD_INPUT, "--compare %s: line %d, column %d: %s: expected an object of --json",
                         path, where.line, where.column, where.text);
    const tool_exit status = check_object(path, object, error);
    if (status == TOOL_DONE)
        *out = object;
    else
        json_decref(object);
    return status;
}
