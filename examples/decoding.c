/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding: one new token a step for each of two sequences, over a cache of fixed capacity.
 *
 * One plan serves all steps: its queries are one per sequence, its keys the whole cache, of which lengths[b] are valid.
 * Two query heads share each head of the cache. The program compares every step with a causal pass over all tokens.
 */
#include "example.h"

#include <string.h>

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, SIZE = 16, CAPACITY = 64, STEPS = 40, PROMPT = 17 };
/* Floats of a token, of the prompt, of all tokens. */
enum { Q_TOKEN = HEADS * SIZE, KV_TOKEN = KV_HEADS * SIZE, PROMPT_COUNT = PROMPT * KV_TOKEN };
enum { Q_COUNT = BATCH * CAPACITY * Q_TOKEN, KV_COUNT = BATCH * CAPACITY * KV_TOKEN };

/* Tokens first, as a projection writes them: [B,tokens,heads,D]. */
static clmgk_layout tokens_first(int64_t tokens, int64_t heads)
{
    return (clmgk_layout){.strided = 1, .batch = tokens * heads * SIZE, .head = SIZE, .token = heads * SIZE};
}

static clmgk_attention_desc describe(int64_t queries)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT; /* softmax */
    desc.batch = BATCH;
    desc.heads = HEADS;
    desc.kv_heads = KV_HEADS;
    desc.length = queries;
    desc.length_k = CAPACITY;
    desc.head_size = SIZE;
    desc.q = desc.o = tokens_first(queries, HEADS);
    desc.k = desc.v = tokens_first(CAPACITY, KV_HEADS);
    desc.causal = 1;
    return desc;
}

/* All tokens at once. */
static void attend_at_once(const float *q, const float *k, const float *v, float *o)
{
    clmgk_error error = {0};
    const clmgk_attention_desc desc = describe(CAPACITY);
    clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = o;
    TRY(clmgk_attention_forward_host(NULL, &desc, &args, &error));
}

int main(void)
{
    static float q[Q_COUNT], k[KV_COUNT], v[KV_COUNT], expected[Q_COUNT];
    fill(q, Q_COUNT, 1);
    fill(k, KV_COUNT, 2);
    fill(v, KV_COUNT, 3);
    attend_at_once(q, k, v, expected);

    clmgk_error error = {0};
    const device d = open_device();
    const cl_command_queue queue = open_queue(d);
    clmgk_attention_desc desc = describe(1);
    desc.use_lengths = 1;
    desc.alignment = CLMGK_ALIGN_LENGTHS; /* the last query sees the last valid key, also where queries are several */
    clmgk_plan *plan = NULL;
    TRY(clmgk_plan_create(d.clmgk, &desc, NULL, &plan, &error));

    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    float row[BATCH * Q_TOKEN];
    args.q = new_buffer(d, sizeof(row), NULL);
    args.o = new_buffer(d, sizeof(row), NULL);
    args.k = new_buffer(d, sizeof(k), NULL); /* the cache: what it holds beyond lengths[b] is never used */
    args.v = new_buffer(d, sizeof(v), NULL);
    args.lengths = new_buffer(d, sizeof(cl_int) * BATCH, NULL);
    args.workspace = new_workspace(d, plan);

    cl_int lengths[BATCH] = {0, PROMPT}; /* tokens in the cache: the second sequence has a prompt */
    write_buffer(queue, args.k, sizeof(k) / BATCH, PROMPT_COUNT * sizeof(float), k + KV_COUNT / BATCH);
    write_buffer(queue, args.v, sizeof(v) / BATCH, PROMPT_COUNT * sizeof(float), v + KV_COUNT / BATCH);
    float worst = 0.0F;
    for (int step = 0; step < STEPS; ++step) {
        for (size_t b = 0; b < BATCH; ++b) { /* the new token joins the cache */
            const size_t token = b * CAPACITY + (size_t)lengths[b]++;
            const size_t at = token * KV_TOKEN * sizeof(float);
            write_buffer(queue, args.k, at, KV_TOKEN * sizeof(float), k + token * KV_TOKEN);
            write_buffer(queue, args.v, at, KV_TOKEN * sizeof(float), v + token * KV_TOKEN);
            memcpy(row + b * Q_TOKEN, q + token * Q_TOKEN, Q_TOKEN * sizeof(float));
        }
        write_buffer(queue, args.q, 0, sizeof(row), row);
        write_buffer(queue, args.lengths, 0, sizeof(lengths), lengths);
        TRY(clmgk_enqueue_forward(plan, queue, &args, 0, NULL, NULL, &error));
        read_buffer(queue, args.o, sizeof(row), row);
        for (size_t b = 0; b < BATCH; ++b) {
            const float *const all = expected + (b * CAPACITY + (size_t)lengths[b] - 1) * Q_TOKEN;
            for (size_t i = 0; i < Q_TOKEN; ++i) {
                worst = fmaxf(worst, fabsf(row[b * Q_TOKEN + i] - all[i]));
            }
        }
    }
    printf("%d steps, cache of %d tokens filled to %d and %d; largest difference from one causal pass: %.1e\n", STEPS,
           CAPACITY, lengths[0], lengths[1], (double)worst);
    EXPECT(worst < 1e-5F);

    release_buffers(&args);
    clmgk_plan_release(plan);
    CL(clReleaseCommandQueue(queue));
    close_device(d);
    return 0;
}
