/* SPDX-License-Identifier: Apache-2.0 */
/* A problem's arrays on the host, and the calls on them. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

enum { UNSET = 0xff, TRAIL = 64 }; /* NaN, or -1 as a length; bytes after the last element */

void th_set_host_array(clmgk_host_args *args, th_name name, void *memory)
{
    switch (name) {
#define BYTE(name, field)
#define F32(name, field)                                                                                               \
    case TH_##name:                                                                                                    \
        args->field = memory;                                                                                          \
        break;
#define STORAGE(name, field)             F32(name, field)
#define I32(name, field)                 F32(name, field)
#define CAPTURE(name, field)             F32(name, field)
#define ARRAY(name, field, element, ...) element(name, field)
#define GRADIENT(name, field, ...)       F32(GRAD_##name, grad_##field)
#define STATISTIC(name, field, ...)      F32(name, field)
        CLMGK_ARRAY_LIST(ARRAY, GRADIENT, STATISTIC)
    default:
        fail_msg("no host array %d", (int)name);
    }
}

/* Whether a host call reads the array before any has written it. */
static bool is_given(th_name name)
{
    return th_is_input(name) || (name >= TH_GRAD_O && name <= TH_GRAD_NEW_STATE_Z);
}

static void make_array(th_host *host, th_array *array, th_name name)
{
    size_t last = 0;
    array->offset = 0;
    for (size_t flat = 0; flat < array->count; flat++)
        last = th_place(array, flat) > last ? th_place(array, flat) : last;
    host->size[name] = (last + 1) * array->element + TRAIL;
    host->bytes[name] = malloc(host->size[name]);
    assert_non_null(host->bytes[name]);
    memset(host->bytes[name], UNSET, host->size[name]);
    for (size_t flat = 0; flat < array->count && is_given(name); flat++) {
        th_put(array, host->bytes[name], flat);
        th_get(array, host->bytes[name], flat);
    }
    th_set_host_array(&host->args, name, host->bytes[name]);
}

th_host th_host_make(th_problem *problem)
{
    th_host host = {.args = CLMGK_HOST_ARGS_INIT};
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (problem->array[name].used)
            make_array(&host, &problem->array[name], name);
    host.args.seed = problem->seed;
    return host;
}

void th_host_free(th_host *host)
{
    for (size_t name = 0; name < TH_ARRAYS; name++)
        free(host->bytes[name]);
}

static bool is_unset(const unsigned char *bytes, size_t size)
{
    return bytes[0] == UNSET && memcmp(bytes, bytes + 1, size - 1) == 0;
}

void th_host_take(const th_host *host, th_problem *problem, th_name name)
{
    const th_array *const array = &problem->array[name];
    unsigned char *const rest = malloc(host->size[name]);
    assert_non_null(rest);
    memcpy(rest, host->bytes[name], host->size[name]);
    for (size_t flat = 0; flat < array->count; flat++) {
        th_get(array, host->bytes[name], flat);
        memset(rest + th_place(array, flat) * array->element, UNSET, array->element);
    }
    assert_true(is_unset(rest, host->size[name]));
    free(rest);
}

void th_host_expect_unwritten(const th_host *host)
{
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (host->bytes[name] && !is_given(name))
            assert_true(is_unset(host->bytes[name], host->size[name]));
}
