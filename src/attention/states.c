/* SPDX-License-Identifier: Apache-2.0 */
/* States in a pool: the check of their places, which are in host memory. */
#include "attention/plan.h"

#include <inttypes.h>

typedef struct state_slots {
    const int32_t *from, *to; /* NULL: the descriptor has none */
    int64_t problems, places;
    int32_t *writer; /* of each place, from 1 on; 0: none */
} state_slots;

static clmgk_status check_places(const char *array, const int32_t *slots, const state_slots *x, clmgk_error *error)
{
    for (int64_t t = 0; slots != NULL && t < x->problems; ++t)
        if (slots[t] < -1 || slots[t] >= x->places)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[%" PRId64 "]: %" PRId32 ": expected -1 to %" PRId64,
                            array, t, slots[t], x->places - 1);
    return CLMGK_OK;
}

static clmgk_status find_writers(const state_slots *x, clmgk_error *error)
{
    for (int64_t t = 0; t < x->problems; ++t) {
        if (x->to[t] < 0)
            continue;
        int32_t *const writer = &x->writer[x->to[t]];
        if (*writer != 0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "new_state_slots[%" PRId64 "]: %" PRId32
                            ": expected a place of its own, which is also that of number %" PRId32,
                            t, x->to[t], *writer - 1);
        *writer = (int32_t)(t + 1);
    }
    return CLMGK_OK;
}

static clmgk_status check_readers(const state_slots *x, clmgk_error *error)
{
    for (int64_t t = 0; t < x->problems; ++t) {
        const int32_t writer = x->from[t] < 0 ? 0 : x->writer[x->from[t]];
        if (writer != 0 && writer != t + 1)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "state_slots[%" PRId64 "]: %" PRId32 ": expected a place that number %" PRId32
                            " does not write",
                            t, x->from[t], writer - 1);
    }
    return CLMGK_OK;
}

clmgk_status clmgk_check_state_slots(const clmgk_attention_desc *resolved, const int32_t *state_places,
                                     const int32_t *new_state_slots, int32_t one_pool, clmgk_error *error)
{
    clmgk_attention_desc d;
    if (!mgk_desc_read(resolved, &d) || d.state_pool == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "resolved: expected a resolved descriptor with state_pool > 0");
    const bool reads = d.use_state != 0, writes = d.use_new_state != 0;
    if ((reads && state_places == NULL) || (writes && new_state_slots == NULL))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected an array",
                        reads && state_places == NULL ? "state_slots" : "new_state_slots");
    state_slots x = {.from = reads ? state_places : NULL,
                     .to = writes ? new_state_slots : NULL,
                     .problems = d.sequences > 0 ? d.sequences : d.batch,
                     .places = d.state_pool};
    MGK_TRY(check_places("state_slots", x.from, &x, error));
    MGK_TRY(check_places("new_state_slots", x.to, &x, error));
    if (!writes)
        return CLMGK_OK;
    x.writer = mgk_alloc(NULL, (size_t)x.places, sizeof(*x.writer));
    if (x.writer == NULL)
        return mgk_fail_memory(error, "the places of states");
    clmgk_status status = find_writers(&x, error);
    if (status == CLMGK_OK && reads && one_pool)
        status = check_readers(&x, error);
    mgk_free(NULL, x.writer);
    return status;
}
