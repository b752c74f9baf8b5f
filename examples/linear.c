/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear attention with a constant state: a prompt in one call, then a token of each sequence a step. MLK, two keys a
 * token, elu1 features. Nothing grows with the number of tokens: the state takes the place of a cache.
 *
 * The program compares every step with a causal pass over all tokens.
 */
#include "example.h"

#include <string.h>

enum { BATCH = 2, HEADS = 3, COMPONENTS = 2, SIZE = 16, TOKENS = 60, PROMPT = 37, ROWS = BATCH * HEADS };

/* Heads first: Q and O [B,H,tokens,D], K [B,H,M,tokens,D], V as Q. */
static clmgk_attention_desc describe(int64_t tokens)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = CLMGK_VARIANT_MLK;
    desc.batch = BATCH;
    desc.heads = HEADS;
    desc.components = COMPONENTS;
    desc.length = tokens;
    desc.head_size = SIZE;
    desc.causal = 1;
    return desc;
}

/* `count` tokens from token `first` on, of each of `rows` rows of TOKENS. */
static void take(const float *all, size_t rows, size_t first, size_t count, float *part)
{
    for (size_t r = 0; r < rows; ++r) {
        memcpy(part + r * count * SIZE, all + (r * TOKENS + first) * SIZE, count * SIZE * sizeof(float));
    }
}

/* Arrays of a call of so many tokens; states are [B,H,F,E] and [B,H,F], and elu1 has as many features as numbers. */
static clmgk_attention_args new_arrays(device d, size_t tokens)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    const size_t bytes = sizeof(float) * ROWS * tokens * SIZE;
    args.q = new_buffer(d, bytes, NULL);
    args.k = new_buffer(d, COMPONENTS * bytes, NULL);
    args.v = new_buffer(d, bytes, NULL);
    args.o = new_buffer(d, bytes, NULL);
    args.new_state_c = new_buffer(d, sizeof(float) * ROWS * SIZE * SIZE, NULL);
    args.new_state_z = new_buffer(d, sizeof(float) * ROWS * SIZE, NULL);
    return args;
}

static float q[ROWS * TOKENS * SIZE], k[COMPONENTS * ROWS * TOKENS * SIZE], v[ROWS * TOKENS * SIZE];
static float expected[ROWS * TOKENS * SIZE], part[COMPONENTS * ROWS * TOKENS * SIZE];

/* Runs tokens first ... first + count - 1 and returns the largest difference from the causal pass over all. */
static float attend(cl_command_queue queue, clmgk_plan *plan, const clmgk_attention_args *args, size_t first,
                    size_t count)
{
    const size_t bytes = sizeof(float) * ROWS * count * SIZE;
    clmgk_error error = {0};
    float worst = 0.0F;
    take(q, ROWS, first, count, part);
    write_buffer(queue, args->q, 0, bytes, part);
    take(k, (size_t)COMPONENTS * ROWS, first, count, part);
    write_buffer(queue, args->k, 0, COMPONENTS * bytes, part);
    take(v, ROWS, first, count, part);
    write_buffer(queue, args->v, 0, bytes, part);
    TRY(clmgk_enqueue_forward(plan, queue, args, 0, NULL, NULL, &error));
    read_buffer(queue, args->o, bytes, part);
    for (size_t i = 0; i < ROWS * count * SIZE; ++i) {
        const size_t row = i / (count * SIZE), inside = i % (count * SIZE);
        worst = fmaxf(worst, fabsf(part[i] - expected[(row * TOKENS + first) * SIZE + inside]));
    }
    return worst;
}

int main(void)
{
    clmgk_error error = {0};
    fill(q, sizeof(q) / sizeof(*q), 1);
    fill(k, sizeof(k) / sizeof(*k), 2);
    fill(v, sizeof(v) / sizeof(*v), 3);
    const clmgk_attention_desc all = describe(TOKENS);
    const clmgk_host_args host = {.struct_size = sizeof(host), .q = q, .k = k, .v = v, .o = expected};
    TRY(clmgk_attention_forward_host(NULL, &all, &host, &error));

    const device d = open_device();
    const cl_command_queue queue = open_queue(d);
    clmgk_attention_desc desc = describe(PROMPT);
    clmgk_plan *prefill = NULL, *decode = NULL;
    desc.use_new_state = 1;
    TRY(clmgk_plan_create(d.clmgk, &desc, NULL, &prefill, &error));
    desc = describe(1);
    desc.use_state = desc.use_new_state = 1;
    TRY(clmgk_plan_create(d.clmgk, &desc, NULL, &decode, &error));

    clmgk_attention_args prompt = new_arrays(d, PROMPT), step = new_arrays(d, 1);
    prompt.workspace = new_workspace(d, prefill);
    step.workspace = new_workspace(d, decode);
    float worst = attend(queue, prefill, &prompt, 0, PROMPT);
    step.state_c = prompt.new_state_c; /* the prompt's state is the first step's */
    step.state_z = prompt.new_state_z;
    for (size_t token = PROMPT; token < TOKENS; ++token) {
        worst = fmaxf(worst, attend(queue, decode, &step, token, 1));
        const clmgk_buffer c = step.state_c, z = step.state_z; /* old and new change places */
        step.state_c = step.new_state_c, step.state_z = step.new_state_z;
        step.new_state_c = c, step.new_state_z = z;
    }
    printf("a prompt of %d tokens and %d steps; largest difference from one causal pass: %.1e\n", PROMPT,
           TOKENS - PROMPT, (double)worst);
    EXPECT(worst < 1e-5F);

    prompt.new_state_c.memory = prompt.new_state_z.memory = NULL; /* they are the step's now */
    release_buffers(&prompt), release_buffers(&step);
    clmgk_plan_release(prefill), clmgk_plan_release(decode);
    CL(clReleaseCommandQueue(queue));
    close_device(d);
    return 0;
}
