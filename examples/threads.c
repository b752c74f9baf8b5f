/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads and two queues on one plan.
 *
 * Threads share the plan, the keys and the values. Each has its own queue, its own arrays to write, its own workspace.
 * The program compares every result with the same call made by one thread: the same bits.
 */
#define _POSIX_C_SOURCE 200809L
#include "example.h"

#include <pthread.h>

enum { THREADS = 2, CALLS = 50, HEADS = 4, LENGTH = 64, SIZE = 16, COUNT = HEADS * LENGTH * SIZE };

typedef struct worker {
    device device;
    clmgk_plan *plan;
    clmgk_buffer k;
    clmgk_buffer v;
    uint32_t seed;
    float outputs[CALLS][COUNT]; /* O of each call */
} worker;

static void *work(void *data)
{
    worker *const w = data;
    float q[COUNT];
    clmgk_error error = {0};
    const cl_command_queue queue = open_queue(w->device);
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.q = new_buffer(w->device, sizeof(q), NULL);
    args.o = new_buffer(w->device, sizeof(q), NULL);
    args.workspace = new_workspace(w->device, w->plan);
    args.k = w->k;
    args.v = w->v;
    for (uint32_t call = 0; call < CALLS; ++call) {
        fill(q, COUNT, w->seed + call);
        write_buffer(queue, args.q, 0, sizeof(q), q);
        TRY(clmgk_enqueue_forward(w->plan, queue, &args, 0, NULL, NULL, &error));
        read_buffer(queue, args.o, sizeof(q), w->outputs[call]);
    }
    args.k.memory = args.v.memory = NULL; /* shared */
    release_buffers(&args);
    CL(clReleaseCommandQueue(queue));
    return NULL;
}

int main(void)
{
    static float k[COUNT], v[COUNT];
    static worker together[THREADS], alone;
    fill(k, COUNT, 1);
    fill(v, COUNT, 2);

    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.heads = HEADS;
    desc.length = LENGTH;
    desc.head_size = SIZE;
    clmgk_error error = {0};
    const device d = open_device();
    clmgk_plan *plan = NULL;
    TRY(clmgk_plan_create(d.clmgk, &desc, NULL, &plan, &error));
    const clmgk_buffer shared_k = new_buffer(d, sizeof(k), k);
    const clmgk_buffer shared_v = new_buffer(d, sizeof(v), v);

    pthread_t threads[THREADS];
    for (size_t t = 0; t < THREADS; ++t) {
        together[t] = (worker){.device = d, .plan = plan, .k = shared_k, .v = shared_v, .seed = 1000 * (uint32_t)t};
        EXPECT(pthread_create(&threads[t], NULL, work, &together[t]) == 0);
    }
    for (size_t t = 0; t < THREADS; ++t) {
        EXPECT(pthread_join(threads[t], NULL) == 0);
    }
    for (size_t t = 0; t < THREADS; ++t) {
        alone = (worker){.device = d, .plan = plan, .k = shared_k, .v = shared_v, .seed = together[t].seed};
        (void)work(&alone);
        for (size_t call = 0; call < CALLS; ++call) {
            for (size_t i = 0; i < COUNT; ++i) {
                EXPECT(alone.outputs[call][i] == together[t].outputs[call][i]);
            }
        }
    }
    printf("%d threads, %d calls each on a queue of its own: the same bits as one thread\n", THREADS, CALLS);

    CL(clReleaseMemObject(shared_k.memory));
    CL(clReleaseMemObject(shared_v.memory));
    clmgk_plan_release(plan);
    close_device(d);
    return 0;
}
