/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks of MPI (mpirun -n 2): messages by clmgk_dist_mpi, attention in a ring against one device's, calls of MPI
 * that fail, and a rank that gives up. Exit status 0 if all is right.
 */
#include "clmgk/dist.h"

#include <math.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 40, HEADS = 2, SIZE = 16, ROW = HEADS * SIZE };

static clmgk_error error;

static int fail(int rank, const char *what)
{
    (void)fprintf(stderr, "rank %d: %s: %s\n", rank, what, error.message);
    return 1;
}

/* ---- MPI's functions that may fail, which the library finds here (MPI's profiling interface) -----------------------
 */

static const char *failing; /* NULL: none */

#pragma GCC visibility push(default)

#define RESULT(name, call) (failing && strcmp(failing, name) == 0 ? MPI_ERR_OTHER : (call))

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    return RESULT("MPI_Isend", PMPI_Isend(data, count, type, to, tag, comm, request));
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request)
{
    return RESULT("MPI_Irecv", PMPI_Irecv(data, count, type, from, tag, comm, request));
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *found, MPI_Status *status)
{
    return RESULT("MPI_Iprobe", PMPI_Iprobe(from, tag, comm, found, status));
}

int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count)
{
    return RESULT("MPI_Get_count", PMPI_Get_count(status, type, count));
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    return RESULT("MPI_Test", PMPI_Test(request, done, status));
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
    return RESULT("MPI_Comm_dup", PMPI_Comm_dup(comm, copy));
}

int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    return RESULT("MPI_Comm_rank", PMPI_Comm_rank(comm, rank));
}

int MPI_Comm_size(MPI_Comm comm, int *size)
{
    return RESULT("MPI_Comm_size", PMPI_Comm_size(comm, size));
}

#pragma GCC visibility pop

/* ---- checks -------------------------------------------------------------------------------------------------------
 */

static bool is_refused(clmgk_status status, clmgk_status expected, const char *words)
{
    failing = NULL;
    return status == expected && strstr(error.message, words) != NULL;
}

/* Calls without a communicator. */
static int check_misuse(bool initialised)
{
    clmgk_dist_mpi *mpi = NULL;
    clmgk_dist_transport transport = CLMGK_DIST_TRANSPORT_INIT;
    static const char *const calls[] = {"MPI_Comm_dup", "MPI_Comm_rank", "MPI_Comm_size"};
    if (!initialised)
        return is_refused(clmgk_dist_mpi_create(NULL, &mpi, &transport, &error), CLMGK_ERROR_INVALID_VALUE, "MPI_Init")
                   ? 0
                   : fail(-1, "before MPI_Init");
    if (!is_refused(clmgk_dist_mpi_create(NULL, NULL, &transport, &error), CLMGK_ERROR_INVALID_VALUE, "out") ||
        !is_refused(clmgk_dist_mpi_create(NULL, &mpi, NULL, &error), CLMGK_ERROR_INVALID_VALUE, "transport"))
        return fail(-1, "NULL");
    for (size_t n = 0; n < sizeof(calls) / sizeof(calls[0]); n++) {
        failing = calls[n];
        if (!is_refused(clmgk_dist_mpi_create(NULL, &mpi, &transport, &error), CLMGK_ERROR_COMMUNICATION, calls[n]))
            return fail(-1, calls[n]);
    }
    clmgk_dist_mpi_release(NULL);
    return 0;
}

/* One exchange of two numbers, with a communicator of its own. */
static int check_exchange(const char *call, int64_t send_bytes, double seconds, const char *words)
{
    clmgk_dist_mpi *mpi = NULL;
    clmgk_dist_transport t = CLMGK_DIST_TRANSPORT_INIT;
    int32_t sent[2] = {1, 2}, received[2];
    void *request = NULL;
    clmgk_status status = clmgk_dist_mpi_create(NULL, &mpi, &t, &error);
    if (status != CLMGK_OK)
        return fail(-1, "MPI");
    const bool gives_up = call && strcmp(call, "cancel") == 0;
    if (gives_up && t.rank == 0) {
        t.cancel(t.state);
        clmgk_dist_mpi_release(mpi);
        return 0;
    }
    const clmgk_dist_exchange x = {sent, send_bytes, 1 - t.rank, received, 8, 1 - t.rank, 1};
    failing = gives_up ? NULL : call;
    status = t.begin(t.state, &x, &request, &error);
    if (status == CLMGK_OK)
        status = t.wait(t.state, request, seconds, &error);
    const bool refused =
        is_refused(status, send_bytes > 8 ? CLMGK_ERROR_OVERFLOW : CLMGK_ERROR_COMMUNICATION, words ? words : call);
    clmgk_dist_mpi_release(mpi);
    return refused ? 0 : fail(t.rank, words ? words : call);
}

static int check_failures(void)
{
    static const char *const calls[] = {"MPI_Isend", "MPI_Irecv", "MPI_Iprobe", "MPI_Get_count", "MPI_Test"};
    int failed = check_misuse(true) || check_exchange(NULL, 0, 0.01, "no answer in time") ||
                 check_exchange("cancel", 0, 60, "another rank gave up");
    for (size_t n = 0; !failed && n < sizeof(calls) / sizeof(calls[0]); n++)
        failed = check_exchange(calls[n], 8, 60, NULL);
    return failed;
}

/* Each rank sends its number to the other, and too much once. */
static int check_messages(const clmgk_dist_transport *t)
{
    const int other = 1 - t->rank;
    int32_t sent[3] = {t->rank, 7, 9}, received[3] = {-1, -1, -1};
    clmgk_dist_exchange x = {sent, 8, other, received, 8, other, 1};
    void *request = NULL;
    if (t->begin(t->state, &x, &request, &error) != CLMGK_OK || t->wait(t->state, request, 60, &error) != CLMGK_OK)
        return fail(t->rank, "an exchange");
    return received[0] == other && received[1] == 7 && received[2] == -1 ? 0 : fail(t->rank, "other numbers");
}

static int check_sizes(const clmgk_dist_transport *t)
{
    const int other = 1 - t->rank;
    int32_t sent[3] = {0}, received[3] = {0};
    clmgk_dist_exchange x = {sent, t->rank == 0 ? 12 : 8, other, received, 8, other, 2};
    void *request = NULL;
    clmgk_status status = t->begin(t->state, &x, &request, &error);
    if (status == CLMGK_OK)
        status = t->wait(t->state, request, 60, &error);
    t->cancel(t->state);
    return (t->rank == 0) == (status == CLMGK_OK) ? 0 : fail(t->rank, "a message of another size");
}

/* Numbers of the whole problem [1,HEADS,TOKENS,SIZE], alike on all ranks. */
static void make_numbers(float *values, int first)
{
    for (int n = 0; n < TOKENS * ROW; n++)
        values[n] = sinf((float)(n * 7 + first));
}

static void take_tokens(const float *whole, const int32_t *tokens, int count, float *own)
{
    for (int h = 0; h < HEADS; h++)
        for (int n = 0; n < count; n++)
            memcpy(own + (size_t)(h * count + n) * SIZE, whole + (size_t)(h * TOKENS + tokens[n]) * SIZE,
                   SIZE * sizeof(float));
}

static clmgk_attention_desc describe(int length)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.heads = HEADS;
    desc.length = desc.length_k = length;
    desc.head_size = SIZE;
    desc.causal = desc.use_positions = 1;
    return desc;
}

static clmgk_status make_buffer(cl_context cl, size_t bytes, void *values, clmgk_buffer *buffer)
{
    cl_int code = CL_SUCCESS;
    buffer->memory = clCreateBuffer(cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, values, &code);
    return code == CL_SUCCESS ? CLMGK_OK : CLMGK_ERROR_OPENCL;
}

/* O of this rank's tokens, by a ring. */
static clmgk_status run_ring(const clmgk_dist_transport *t, const int64_t *lengths, const int32_t *tokens, float *q,
                             float *k, float *v, float *o)
{
    const int count = (int)lengths[t->rank];
    const size_t bytes = (size_t)count * ROW * sizeof(float);
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    cl_int code = CL_SUCCESS;
    clmgk_context *context = NULL;
    clmgk_dist_plan *plan = NULL;
    clmgk_status status = clmgk_select_device(getenv("CLMGK_DEVICE"), &info, &error);
    if (status != CLMGK_OK)
        return status;
    cl_context cl = clCreateContext(NULL, 1, &info.device_id, NULL, NULL, &code);
    cl_command_queue queue = clCreateCommandQueue(cl, info.device_id, 0, &code);
    const clmgk_attention_desc desc = describe(count);
    const clmgk_dist_desc d = {.struct_size = sizeof(d),
                               .attention = &desc,
                               .lengths_k = lengths,
                               .schedule = CLMGK_DIST_RING,
                               .timeout = 300};
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    status = clmgk_context_create(cl, info.device_id, NULL, &context, &error);
    if (status == CLMGK_OK)
        status = clmgk_dist_plan_create(context, queue, &d, t, NULL, &plan, &error);
    if (status == CLMGK_OK && (make_buffer(cl, bytes, q, &args.q) || make_buffer(cl, bytes, k, &args.k) ||
                               make_buffer(cl, bytes, v, &args.v) || make_buffer(cl, bytes, o, &args.o) ||
                               make_buffer(cl, (size_t)count * sizeof(*tokens), (void *)tokens, &args.positions)))
        status = CLMGK_ERROR_OPENCL;
    args.positions_k = args.positions;
    if (status == CLMGK_OK)
        status = clmgk_dist_forward(plan, &args, &error);
    if (status == CLMGK_OK &&
        clEnqueueReadBuffer(queue, args.o.memory, CL_TRUE, 0, bytes, o, 0, NULL, NULL) != CL_SUCCESS)
        status = CLMGK_ERROR_OPENCL;
    const cl_mem memory[] = {args.q.memory, args.k.memory, args.v.memory, args.o.memory, args.positions.memory};
    for (size_t n = 0; n < sizeof(memory) / sizeof(memory[0]); n++)
        if (memory[n])
            (void)clReleaseMemObject(memory[n]);
    clmgk_dist_plan_release(plan);
    clmgk_context_release(context);
    (void)clReleaseCommandQueue(queue);
    (void)clReleaseContext(cl);
    return status;
}

static int check_ring(const clmgk_dist_transport *t)
{
    static float q[TOKENS * ROW], k[TOKENS * ROW], v[TOKENS * ROW], whole[TOKENS * ROW], expected[TOKENS * ROW],
        own[4][TOKENS * ROW];
    int32_t tokens[TOKENS], order[TOKENS];
    int64_t lengths[2];
    make_numbers(q, 1);
    make_numbers(k, 2);
    make_numbers(v, 3);
    for (int n = 0; n < TOKENS; n++)
        order[n] = n;
    clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = whole;
    args.positions = args.positions_k = order;
    const clmgk_attention_desc desc = describe(TOKENS);
    if (clmgk_attention_forward_host(getenv("CLMGK_DEVICE"), &desc, &args, &error) != CLMGK_OK)
        return fail(t->rank, "one device");
    if (clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, TOKENS, NULL, 0, t->ranks, tokens, lengths, &error) != CLMGK_OK)
        return fail(t->rank, "the order");
    const int count = (int)lengths[t->rank];
    const int32_t *const mine = tokens + (t->rank == 0 ? 0 : lengths[0]);
    take_tokens(q, mine, count, own[0]);
    take_tokens(k, mine, count, own[1]);
    take_tokens(v, mine, count, own[2]);
    take_tokens(whole, mine, count, expected);
    if (run_ring(t, lengths, mine, own[0], own[1], own[2], own[3]) != CLMGK_OK)
        return fail(t->rank, "the ring");
    for (int n = 0; n < count * ROW; n++)
        if (!(fabsf(own[3][n] - expected[n]) < 1e-5F))
            return fail(t->rank, "the ring gives other numbers");
    return 0;
}

int main(int argc, char **argv)
{
    clmgk_dist_mpi *mpi = NULL;
    clmgk_dist_transport transport = CLMGK_DIST_TRANSPORT_INIT;
    int failed = check_misuse(false);
    (void)MPI_Init(&argc, &argv);
    failed = failed || clmgk_dist_mpi_create(NULL, &mpi, &transport, &error) != CLMGK_OK ? fail(-1, "MPI") : 0;
    if (!failed && transport.ranks != 2)
        failed = fail(transport.rank, "expected mpirun -n 2");
    failed =
        failed || check_messages(&transport) || check_ring(&transport) || check_failures() || check_sizes(&transport);
    clmgk_dist_mpi_release(mpi);
    if (failed)
        (void)MPI_Abort(MPI_COMM_WORLD, 1);
    (void)MPI_Finalize();
    return failed;
}
