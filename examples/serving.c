/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serving: requests come and go in eight places of a batch, prompts and single tokens in one call a step. Keys and
 * values are in pages, which a finished request gives back. All requests share their first page, stored once. One plan
 * serves all steps: offsets of the queries, lengths, page tables, and slots of the new keys and values are arrays of a
 * call. The program compares each row with a causal pass over its request's tokens.
 */
#include "example.h"

#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, SIZE = 16, PAGE = 16, PLACES = 8, ROOM = 8, REQUESTS = 20 };
enum { POOL = 1 + PLACES * (ROOM - 1), MOST = ROOM * PAGE, STEP = 512 }; /* pages; tokens of a request, of a step */
enum { Q_TOKEN = HEADS * SIZE, KV_TOKEN = KV_HEADS * SIZE };

/* A place of the batch: its request if it has one, how many of its tokens are in its pages, and these. */
typedef struct place {
    int taken, request, length, pages;
    cl_int page[ROOM];
} place;

typedef struct service {
    cl_command_queue queue;
    clmgk_attention_args args;
    place place[PLACES];
    cl_int free_page[POOL], slot[STEP]; /* of the step's keys and values; -1: none */
    int free_pages, next, rows;         /* next: the first request that waits; rows of the step */
    float q[STEP][Q_TOKEN], o[STEP][Q_TOKEN], k[STEP][KV_TOKEN], v[STEP][KV_TOKEN];
    const float *expected[STEP];
} service;

/* What a model computes from tokens and weights; the causal passes; tokens of the prompts, and of all. */
static float queries[REQUESTS][MOST][Q_TOKEN], keys[REQUESTS][MOST][KV_TOKEN], values[REQUESTS][MOST][KV_TOKEN];
static float expected[REQUESTS][MOST][Q_TOKEN];
static int prompts[REQUESTS], tokens[REQUESTS];

static clmgk_attention_desc describe(int64_t length)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT; /* softmax */
    desc.heads = HEADS;
    desc.kv_heads = KV_HEADS;
    desc.length = length;
    desc.head_size = SIZE;
    desc.causal = 1;
    desc.q = desc.o = (clmgk_layout){.strided = 1, .head = SIZE, .token = Q_TOKEN}; /* tokens first */
    desc.k = desc.v = (clmgk_layout){.strided = 1, .batch = (int64_t)PAGE * KV_TOKEN, .head = SIZE, .token = KV_TOKEN};
    return desc;
}

/* The next `count` tokens of a place's request join its pages, and the step's queries. */
static void add_tokens(service *s, place *p, int count)
{
    for (; count > 0; --count, ++p->length, ++s->rows) {
        if (p->length % PAGE == 0)
            p->page[p->pages++] = s->free_page[--s->free_pages];
        s->slot[s->rows] = p->page[p->pages - 1] * PAGE + p->length % PAGE;
        memcpy(s->k[s->rows], keys[p->request][p->length], sizeof(s->k[0]));
        memcpy(s->v[s->rows], values[p->request][p->length], sizeof(s->v[0]));
        memcpy(s->q[s->rows], queries[p->request][p->length], sizeof(s->q[0]));
        s->expected[s->rows] = expected[p->request][p->length];
    }
}

/* Requests take free places with their whole prompts; the others bring a token. */
static void fill_step(service *s)
{
    cl_int offsets[PLACES + 1] = {0}, lengths[PLACES], table[PLACES][ROOM] = {{0}};
    s->rows = 0;
    memset(s->slot, -1, sizeof(s->slot));
    for (int t = 0; t < PLACES; ++t) {
        place *const p = &s->place[t];
        if (p->taken && p->length == tokens[p->request]) /* the step before had its last token */
            for (p->taken = 0; p->pages > 1;)
                s->free_page[s->free_pages++] = p->page[--p->pages];
        if (p->taken) {
            add_tokens(s, p, 1);
        } else if (s->next < REQUESTS && s->rows + prompts[s->next] <= STEP - PLACES) {
            *p = (place){.taken = 1, .request = s->next++, .length = PAGE, .pages = 1}; /* page 0 is there already */
            add_tokens(s, p, prompts[p->request] - PAGE);
        }
        offsets[t + 1] = s->rows;
        lengths[t] = p->taken ? p->length : 0;
        memcpy(table[t], p->page, sizeof(table[t]));
    }
    write_buffer(s->queue, s->args.q, 0, (size_t)s->rows * sizeof(s->q[0]), s->q);
    write_buffer(s->queue, s->args.offsets, 0, sizeof(offsets), offsets);
    write_buffer(s->queue, s->args.lengths, 0, sizeof(lengths), lengths);
    write_buffer(s->queue, s->args.page_table, 0, sizeof(table), table);
    write_buffer(s->queue, s->args.append_k, 0, sizeof(s->k), s->k);
    write_buffer(s->queue, s->args.append_v, 0, sizeof(s->v), s->v);
    write_buffer(s->queue, s->args.append_slots, 0, sizeof(s->slot), s->slot);
}

int main(void)
{
    static service s = {.args = CLMGK_ATTENTION_ARGS_INIT};
    clmgk_error error = {0};
    fill(&queries[0][0][0], sizeof(queries) / sizeof(float), 1);
    fill(&keys[0][0][0], sizeof(keys) / sizeof(float), 2);
    fill(&values[0][0][0], sizeof(values) / sizeof(float), 3);
    for (int r = 0; r < REQUESTS; ++r) {
        prompts[r] = PAGE + 5 + r * 13 % 60;
        tokens[r] = prompts[r] + 4 + r * 7 % 20;
        memcpy(keys[r], keys[0], PAGE * sizeof(keys[0][0]));
        memcpy(values[r], values[0], PAGE * sizeof(values[0][0]));
        const clmgk_attention_desc whole = describe(tokens[r]);
        clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
        args.q = queries[r], args.k = keys[r], args.v = values[r], args.o = expected[r];
        TRY(clmgk_attention_forward_host(NULL, &whole, &args, &error));
    }
    const device d = open_device();
    clmgk_attention_desc desc = describe(STEP);
    desc.sequences = PLACES;
    desc.use_lengths = 1;
    desc.page_size = PAGE, desc.pages = POOL, desc.table_pages = ROOM;
    desc.append = STEP; /* tokens at most, of which each step has some */
    clmgk_plan *plan = NULL;
    TRY(clmgk_plan_create(d.clmgk, &desc, NULL, &plan, &error));
    s.queue = open_queue(d);
    s.args.q = new_buffer(d, sizeof(s.q), NULL);
    s.args.o = new_buffer(d, sizeof(s.q), NULL);
    s.args.k = new_buffer(d, sizeof(keys[0][0]) * POOL * PAGE, keys); /* of these, page 0 is read */
    s.args.v = new_buffer(d, sizeof(values[0][0]) * POOL * PAGE, values);
    s.args.append_k = new_buffer(d, sizeof(s.k), NULL);
    s.args.append_v = new_buffer(d, sizeof(s.v), NULL);
    s.args.append_slots = new_buffer(d, sizeof(s.slot), NULL);
    s.args.offsets = new_buffer(d, sizeof(cl_int) * (PLACES + 1), NULL);
    s.args.lengths = new_buffer(d, sizeof(cl_int) * PLACES, NULL);
    s.args.page_table = new_buffer(d, sizeof(cl_int) * PLACES * ROOM, NULL);
    s.args.workspace = new_workspace(d, plan);
    for (cl_int page = POOL - 1; page > 0; --page)
        s.free_page[s.free_pages++] = page;
    float worst = 0.0F;
    for (fill_step(&s); s.rows > 0; fill_step(&s)) {
        TRY(clmgk_enqueue_append(plan, s.queue, &s.args, 0, NULL, NULL, &error));
        TRY(clmgk_enqueue_forward(plan, s.queue, &s.args, 0, NULL, NULL, &error));
        read_buffer(s.queue, s.args.o, (size_t)s.rows * sizeof(s.o[0]), s.o);
        for (int i = 0; i < s.rows; ++i)
            for (int n = 0; n < Q_TOKEN; ++n)
                worst = fmaxf(worst, fabsf(s.o[i][n] - s.expected[i][n]));
    }
    printf("%d requests; largest difference from causal passes: %.1e\n", REQUESTS, (double)worst);
    EXPECT(worst < 1e-5F && s.free_pages == POOL - 1);
    release_buffers(&s.args);
    clmgk_plan_release(plan);
    CL(clReleaseCommandQueue(s.queue));
    close_device(d);
    return 0;
}
