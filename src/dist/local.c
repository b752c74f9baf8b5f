/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process: messages wait in a list until their receivers take them, and
 * copy them without holding the list. */
#include "dist.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A message under way. Its sender keeps the bytes until it is taken. */
typedef struct message {
    struct message *next;
    const void *bytes;
    int64_t count;
    int32_t from, to, tag;
    bool taken;  /* its bytes are no longer needed */
    bool copied; /* its receiver copies them: it is in no list */
} message;

typedef struct local_rank {
    clmgk_dist_local *local;
    int32_t rank;
} local_rank;

struct clmgk_dist_local {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    message *messages; /* in the order of sending */
    bool cancelled;
    int32_t ranks;
    local_rank *rank; /* [ranks] */
};

/* An exchange of one rank. */
typedef struct local_request {
    clmgk_dist_exchange exchange;
    message sent; /* in the list while it is not taken */
} local_request;

static clmgk_status local_begin(void *state, const clmgk_dist_exchange *exchange, void **request, clmgk_error *error)
{
    const local_rank *const own = state;
    clmgk_dist_local *const local = own->local;
    local_request *const r = calloc(1, sizeof(*r));
    *request = r;
    if (r == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "out of memory: a message");
    r->exchange = *exchange;
    r->sent = (message){.bytes = exchange->send,
                        .count = exchange->send_bytes,
                        .from = own->rank,
                        .to = exchange->to,
                        .tag = exchange->tag,
                        .taken = exchange->send_bytes == 0};
    if (r->sent.taken)
        return CLMGK_OK;
    pthread_mutex_lock(&local->mutex);
    message **last = &local->messages;
    while (*last != NULL)
        last = &(*last)->next;
    *last = &r->sent;
    pthread_cond_broadcast(&local->changed);
    pthread_mutex_unlock(&local->mutex);
    return CLMGK_OK;
}

/* With the mutex: the first message for the request, of which the list is relieved; NULL: none yet. */
static message *take(clmgk_dist_local *local, int32_t rank, const clmgk_dist_exchange *x)
{
    for (message **at = &local->messages; *at != NULL; at = &(*at)->next)
        if ((*at)->to == rank && (*at)->from == x->from && (*at)->tag == x->tag) {
            message *const found = *at;
            *at = found->next;
            return found;
        }
    return NULL;
}

/* With the mutex: waits until the list changes; false when the time is over. */
static bool await_change(clmgk_dist_local *local, const struct timespec *end)
{
    return pthread_cond_timedwait(&local->changed, &local->mutex, end) != ETIMEDOUT;
}

/* With the mutex: receives, and waits until the own message is taken. */
static clmgk_status complete(clmgk_dist_local *local, int32_t rank, local_request *r, const struct timespec *end,
                             clmgk_error *error)
{
    bool received = r->exchange.receive_bytes == 0, in_time = true;
    while (!received || !r->sent.taken) {
        message *const found = received ? NULL : take(local, rank, &r->exchange);
        if (found != NULL && found->count != r->exchange.receive_bytes)
            return mgk_dist_fail(error, CLMGK_ERROR_COMMUNICATION, "rank %d: a message of %lld bytes: expected %lld",
                                 (int)r->exchange.from, (long long)found->count, (long long)r->exchange.receive_bytes);
        if (found != NULL) { /* others may copy at once */
            found->copied = true;
            pthread_mutex_unlock(&local->mutex);
            memcpy(r->exchange.receive, found->bytes, (size_t)found->count);
            pthread_mutex_lock(&local->mutex);
            found->taken = received = true;
            pthread_cond_broadcast(&local->changed);
            continue;
        }
        if (local->cancelled)
            return mgk_dist_fail(error, CLMGK_ERROR_COMMUNICATION, "another rank gave up");
        if (!in_time)
            return mgk_dist_fail(error, CLMGK_ERROR_COMMUNICATION, "rank %d: no answer in time",
                                 (int)(received ? r->exchange.to : r->exchange.from));
        in_time = await_change(local, end);
    }
    return CLMGK_OK;
}

/* With the mutex: takes the own message back, when nobody copies it. */
static void withdraw(clmgk_dist_local *local, const local_request *r)
{
    while (r->sent.copied && !r->sent.taken)
        (void)pthread_cond_wait(&local->changed, &local->mutex);
    for (message **at = &local->messages; *at != NULL; at = &(*at)->next)
        if (*at == &r->sent) {
            *at = r->sent.next;
            return;
        }
}

static clmgk_status local_wait(void *state, void *request, double seconds, clmgk_error *error)
{
    const local_rank *const own = state;
    clmgk_dist_local *const local = own->local;
    local_request *const r = request;
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    const double whole = (double)(int64_t)seconds;
    end.tv_sec += (time_t)whole;
    end.tv_nsec += (long)((seconds - whole) * 1e9);
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&local->mutex);
    const clmgk_status status = complete(local, own->rank, r, &end, error);
    withdraw(local, r);
    pthread_mutex_unlock(&local->mutex);
    free(r);
    return status;
}

static void local_cancel(void *state)
{
    clmgk_dist_local *const local = ((const local_rank *)state)->local;
    pthread_mutex_lock(&local->mutex);
    local->cancelled = true;
    pthread_cond_broadcast(&local->changed);
    pthread_mutex_unlock(&local->mutex);
}

static bool make_monitor(clmgk_dist_local *local)
{
    pthread_condattr_t monotonic;
    if (pthread_mutex_init(&local->mutex, NULL) != 0)
        return false;
    bool made = pthread_condattr_init(&monotonic) == 0;
    if (made) {
        made = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
               pthread_cond_init(&local->changed, &monotonic) == 0;
        (void)pthread_condattr_destroy(&monotonic);
    }
    if (!made)
        (void)pthread_mutex_destroy(&local->mutex);
    return made;
}

clmgk_status clmgk_dist_local_create(int32_t ranks, clmgk_dist_local **out, clmgk_error *error)
{
    if (out == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "out: NULL: expected a place for the result");
    *out = NULL;
    if (ranks < 1 || ranks > CLMGK_DIST_MAX_RANKS)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "ranks: %d: expected 1 to %d", (int)ranks,
                             CLMGK_DIST_MAX_RANKS);
    clmgk_dist_local *const local = calloc(1, sizeof(*local));
    local_rank *const list = calloc((size_t)ranks, sizeof(*list));
    if (local == NULL || list == NULL || !make_monitor(local)) {
        free(local);
        free(list);
        return mgk_dist_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "out of memory: %d ranks", (int)ranks);
    }
    local->ranks = ranks;
    local->rank = list;
    for (int32_t r = 0; r < ranks; ++r)
        list[r] = (local_rank){local, r};
    *out = local;
    return CLMGK_OK;
}

clmgk_status clmgk_dist_local_transport(clmgk_dist_local *local, int32_t rank, clmgk_dist_transport *out,
                                        clmgk_error *error)
{
    if (local == NULL || out == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL", local == NULL ? "local" : "out");
    if (rank < 0 || rank >= local->ranks)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "rank: %d: expected 0 to %d", (int)rank,
                             (int)local->ranks - 1);
    *out = (clmgk_dist_transport){.struct_size = sizeof(*out),
                                  .state = &local->rank[rank],
                                  .rank = rank,
                                  .ranks = local->ranks,
                                  .begin = local_begin,
                                  .wait = local_wait,
                                  .cancel = local_cancel};
    return CLMGK_OK;
}

void clmgk_dist_local_release(clmgk_dist_local *local)
{
    if (local == NULL)
        return;
    (void)pthread_cond_destroy(&local->changed);
    (void)pthread_mutex_destroy(&local->mutex);
    free(local->rank);
    free(local);
}
