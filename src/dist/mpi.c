/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of an MPI communicator; without MPI, functions that say so. */
#include "dist.h"

#if CLMGK_DIST_WITH_MPI
#include <mpi.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG_CANCEL = 30000 }; /* a rank gives up; exchanges have smaller tags */

struct clmgk_dist_mpi {
    MPI_Comm communicator; /* a copy of the caller's, whose messages meet no others */
    int rank, ranks;
    bool failed;
};

/* A message has a copy of the bytes: MPI cannot take back a message that nobody receives, and may read it later. It is
 * received when it is there, and its size is right: MPI may end the program over one that is too large. */
typedef struct mpi_exchange {
    MPI_Request receive, send;
    clmgk_dist_exchange exchange;
    bool received; /* or its receive has begun */
    void *copy;    /* of what is sent */
} mpi_exchange;

static clmgk_status check_mpi(int code, const char *call, clmgk_error *error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return CLMGK_OK;
    (void)MPI_Error_string(code, text, &length);
    return mgk_dist_fail(error, CLMGK_ERROR_COMMUNICATION, "%s: %s", call, text);
}

static clmgk_status start(const clmgk_dist_mpi *s, const clmgk_dist_exchange *x, mpi_exchange *e, clmgk_error *error)
{
    e->receive = e->send = MPI_REQUEST_NULL;
    e->exchange = *x;
    e->received = x->receive_bytes == 0;
    DIST_TRY(mgk_dist_alloc(x->send_bytes, &e->copy, error));
    if (x->send_bytes == 0)
        return CLMGK_OK;
    memcpy(e->copy, x->send, (size_t)x->send_bytes);
    return check_mpi(MPI_Isend(e->copy, (int)x->send_bytes, MPI_BYTE, x->to, x->tag, s->communicator, &e->send),
                     "MPI_Isend", error);
}

/* Ends what can be ended. The copy of a message that is still under way is lost, because MPI may read it. */
static void finish(mpi_exchange *e)
{
    int done = 1;
    if (e->receive != MPI_REQUEST_NULL) {
        (void)MPI_Cancel(&e->receive);
        (void)MPI_Wait(&e->receive, MPI_STATUS_IGNORE);
    }
    if (e->send != MPI_REQUEST_NULL && MPI_Test(&e->send, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        done = 0;
    if (done)
        free(e->copy);
    free(e);
}

static clmgk_status mpi_begin(void *state, const clmgk_dist_exchange *exchange, void **request, clmgk_error *error)
{
    const int64_t most = INT32_MAX;
    *request = NULL;
    if (exchange->send_bytes > most || exchange->receive_bytes > most)
        return mgk_dist_fail(error, CLMGK_ERROR_OVERFLOW, "a message of %lld bytes: MPI takes at most 2^31 - 1",
                             (long long)(exchange->send_bytes > most ? exchange->send_bytes : exchange->receive_bytes));
    mpi_exchange *e = NULL;
    DIST_TRY(mgk_dist_alloc((int64_t)sizeof(*e), (void **)&e, error));
    const clmgk_status status = start(state, exchange, e, error);
    if (status == CLMGK_OK)
        *request = e;
    else
        finish(e);
    return status;
}

/* Whether a rank said that it gives up. */
static bool is_cancelled(const clmgk_dist_mpi *s)
{
    int found = 0;
    return MPI_Iprobe(MPI_ANY_SOURCE, TAG_CANCEL, s->communicator, &found, MPI_STATUS_IGNORE) == MPI_SUCCESS && found;
}

/* Begins to receive, if there is a message. */
static clmgk_status look_for(const clmgk_dist_mpi *s, mpi_exchange *e, clmgk_error *error)
{
    const clmgk_dist_exchange *const x = &e->exchange;
    int found = 0, count = 0;
    MPI_Status status;
    DIST_TRY(check_mpi(MPI_Iprobe(x->from, x->tag, s->communicator, &found, &status), "MPI_Iprobe", error));
    if (!found)
        return CLMGK_OK;
    DIST_TRY(check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count", error));
    if (count != x->receive_bytes)
        return mgk_dist_fail(error, CLMGK_ERROR_COMMUNICATION, "rank %d: a message of %d bytes: expected %lld",
                             (int)x->from, count, (long long)x->receive_bytes);
    e->received = true;
    return check_mpi(MPI_Irecv(x->receive, count, MPI_BYTE, x->from, x->tag, s->communicator, &e->receive), "MPI_Irecv",
                     error);
}

/* Goes on with one direction; *done: it is over. */
static clmgk_status go_on(MPI_Request *request, int *done, clmgk_error *error)
{
    *done = 1;
    return *request == MPI_REQUEST_NULL ? CLMGK_OK
                                        : check_mpi(MPI_Test(request, done, MPI_STATUS_IGNORE), "MPI_Test", error);
}

static clmgk_status wait_for(const clmgk_dist_mpi *s, mpi_exchange *e, double seconds, clmgk_error *error)
{
    const double end = MPI_Wtime() + seconds;
    const struct timespec pause = {0, 20000};
    for (;;) {
        int sent = 1, received = 1;
        if (!e->received)
            DIST_TRY(look_for(s, e, error));
        DIST_TRY(go_on(&e->receive, &received, error));
        DIST_TRY(go_on(&e->send, &sent, error));
        if (e->received && received && sent)
            return CLMGK_OK;
        if (is_cancelled(s))
            return mgk_dist_fail(error, CLMGK_ERROR_COMMUNICATION, "another rank gave up");
        if (MPI_Wtime() >= end)
            return mgk_dist_fail(error, CLMGK_ERROR_COMMUNICATION, "a rank: no answer in time");
        (void)nanosleep(&pause, NULL);
    }
}

static clmgk_status mpi_wait(void *state, void *request, double seconds, clmgk_error *error)
{
    clmgk_dist_mpi *const s = state;
    const clmgk_status status = wait_for(s, request, seconds, error);
    s->failed = s->failed || status != CLMGK_OK;
    finish(request);
    return status;
}

static void mpi_cancel(void *state)
{
    clmgk_dist_mpi *const s = state;
    for (int r = 0; r < s->ranks && !s->failed; ++r) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (r != s->rank && MPI_Isend(NULL, 0, MPI_BYTE, r, TAG_CANCEL, s->communicator, &request) == MPI_SUCCESS)
            (void)MPI_Request_free(&request);
    }
    s->failed = true;
}

static clmgk_status open_mpi(const void *communicator, clmgk_dist_mpi *s, clmgk_error *error)
{
    int initialised = 0;
    if (MPI_Initialized(&initialised) != MPI_SUCCESS || !initialised)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "MPI: expected MPI_Init before");
    const MPI_Comm given = communicator != NULL ? *(const MPI_Comm *)communicator : MPI_COMM_WORLD;
    DIST_TRY(check_mpi(MPI_Comm_dup(given, &s->communicator), "MPI_Comm_dup", error));
    (void)MPI_Comm_set_errhandler(s->communicator, MPI_ERRORS_RETURN);
    DIST_TRY(check_mpi(MPI_Comm_rank(s->communicator, &s->rank), "MPI_Comm_rank", error));
    return check_mpi(MPI_Comm_size(s->communicator, &s->ranks), "MPI_Comm_size", error);
}

clmgk_status clmgk_dist_mpi_create(const void *communicator, clmgk_dist_mpi **out, clmgk_dist_transport *transport,
                                   clmgk_error *error)
{
    clmgk_dist_mpi *s = NULL;
    if (out == NULL || transport == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL", out == NULL ? "out" : "transport");
    *out = NULL;
    DIST_TRY(mgk_dist_alloc((int64_t)sizeof(*s), (void **)&s, error));
    s->communicator = MPI_COMM_NULL;
    const clmgk_status status = open_mpi(communicator, s, error);
    if (status != CLMGK_OK) {
        if (s->communicator != MPI_COMM_NULL)
            (void)MPI_Comm_free(&s->communicator);
        free(s);
        return status;
    }
    *transport = (clmgk_dist_transport){.struct_size = sizeof(*transport),
                                        .state = s,
                                        .rank = s->rank,
                                        .ranks = s->ranks,
                                        .begin = mpi_begin,
                                        .wait = mpi_wait,
                                        .cancel = mpi_cancel};
    *out = s;
    return CLMGK_OK;
}

void clmgk_dist_mpi_release(clmgk_dist_mpi *mpi)
{
    if (mpi == NULL)
        return;
    if (!mpi->failed) /* it takes all ranks */
        (void)MPI_Comm_free(&mpi->communicator);
    free(mpi);
}
#else
clmgk_status clmgk_dist_mpi_create(const void *communicator, clmgk_dist_mpi **out, clmgk_dist_transport *transport,
                                   clmgk_error *error)
{
    (void)communicator;
    (void)transport;
    if (out != NULL)
        *out = NULL;
    return mgk_dist_fail(error, CLMGK_ERROR_UNSUPPORTED, "MPI: this libclmgk-dist was built without it");
}

void clmgk_dist_mpi_release(clmgk_dist_mpi *mpi)
{
    (void)mpi;
}
#endif
