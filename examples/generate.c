/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decoder of two layers generates text: a prompt in one call, then a token a step, each the likeliest after all
 * before it, over caches of keys and values of fixed capacity. Weights are random, so the text is too.
 *
 * One layer object serves the prompt, one all steps: nothing compiles after these. In the end the program compares
 * every step with a call that takes the whole text as its prompt.
 */
#include "layers.h"

enum { HEADS = 4, KV_HEADS = 2, SIZE = 16, WIDTH = HEADS * SIZE, LAYERS = 2, WORDS = 64 };
enum { PROMPT = 24, STEPS = 1000, TOKENS = PROMPT + STEPS };

/* What lasts as long as the text: weights and cache of each layer, words, the text. */
typedef struct model {
    clmgk_buffer weights[LAYERS], cache_k[LAYERS], cache_v[LAYERS];
    clmgk_attention_args attention; /* lengths, how many tokens there are: one number, as there is one text */
    float embedding[WORDS][WIDTH], output[WORDS][WIDTH];
    int text[TOKENS + 1];
} model;

/* Calls of `tokens` tokens each. */
typedef struct decoder {
    size_t tokens;
    clmgk_layer *layer;
    clmgk_layer_args args[LAYERS];
    clmgk_buffer array[LAYERS + 1]; /* input of a layer, of the next one, ..., output of the last one */
} decoder;

static clmgk_attention_desc describe(int64_t tokens)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT; /* softmax */
    desc.heads = HEADS, desc.kv_heads = KV_HEADS, desc.head_size = SIZE;
    desc.length = tokens;
    desc.causal = 1;
    desc.use_lengths = 1;
    desc.alignment = CLMGK_ALIGN_LENGTHS;
    return desc;
}

static void open_model(model *m, device d)
{
    const clmgk_attention_desc attention = describe(1);
    const clmgk_layer_desc desc = describe_layer(&attention, WIDTH);
    const size_t count = place_weights(&desc, NULL, NULL, NULL), cache = sizeof(float) * TOKENS * KV_HEADS * SIZE;
    float *const weights = malloc(count * sizeof(float));
    EXPECT(weights != NULL);
    fill(m->embedding[0], sizeof(m->embedding) / sizeof(float), 1);
    fill(m->output[0], sizeof(m->output) / sizeof(float), 2);
    for (size_t i = 0; i < LAYERS; ++i) {
        fill_weights(weights, count, WIDTH, (uint32_t)i + 3);
        m->weights[i] = new_buffer(d, count * sizeof(float), weights);
        m->cache_k[i] = new_buffer(d, cache, NULL), m->cache_v[i] = new_buffer(d, cache, NULL);
    }
    m->attention = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    m->attention.lengths = new_buffer(d, sizeof(cl_int), NULL);
    free(weights);
}

static decoder open_decoder(device d, const model *m, size_t tokens)
{
    clmgk_error error = {0};
    const clmgk_attention_desc attention = describe((int64_t)tokens);
    clmgk_layer_desc desc = describe_layer(&attention, WIDTH);
    desc.cache_capacity = TOKENS;
    decoder g = {.tokens = tokens};
    TRY(clmgk_layer_create(d.clmgk, &desc, NULL, &g.layer, &error)); /* the only call that compiles */
    const clmgk_buffer workspace = new_layer_workspace(d, g.layer);
    g.array[0] = new_buffer(d, tokens * WIDTH * sizeof(float), NULL);
    for (size_t i = 0; i < LAYERS; ++i) {
        g.array[i + 1] = new_buffer(d, tokens * WIDTH * sizeof(float), NULL);
        g.args[i] = (clmgk_layer_args){.struct_size = sizeof(*g.args), .attention = &m->attention};
        g.args[i].x = g.array[i], g.args[i].out = g.array[i + 1], g.args[i].workspace = workspace;
        g.args[i].cache_k = m->cache_k[i], g.args[i].cache_v = m->cache_v[i];
        (void)place_weights(&desc, &g.args[i], m->weights[i].memory, NULL);
    }
    return g;
}

static void close_decoder(decoder *g)
{
    release_each(g->array, LAYERS + 1), release_each(&g->args[0].workspace, 1);
    clmgk_layer_release(g->layer);
}

/* Takes tokens from number `first` on, and puts the likeliest behind them; `hidden`: what the last layer makes of all.
 */
static void decode(model *m, const decoder *g, cl_command_queue queue, size_t first, float (*hidden)[WIDTH])
{
    clmgk_error error = {0};
    const size_t row = WIDTH * sizeof(float), end = first + g->tokens;
    const cl_int length = (cl_int)end;
    for (size_t t = 0; t < g->tokens; ++t) {
        write_buffer(queue, g->array[0], t * row, row, m->embedding[m->text[first + t]]);
    }
    write_buffer(queue, m->attention.lengths, 0, sizeof(length), &length);
    for (size_t i = 0; i < LAYERS; ++i) {
        TRY(clmgk_enqueue_layer_forward(g->layer, queue, &g->args[i], 0, NULL, NULL, &error));
    }
    read_buffer(queue, g->array[LAYERS], g->tokens * row, hidden[first]);
    float best = -INFINITY;
    for (int word = 0; word < WORDS; ++word) {
        float score = 0.0F;
        for (size_t c = 0; c < WIDTH; ++c) {
            score += hidden[end - 1][c] * m->output[word][c];
        }
        m->text[end] = score > best ? word : m->text[end];
        best = fmaxf(best, score);
    }
}

int main(void)
{
    static model m;
    static float hidden[TOKENS][WIDTH], expected[TOKENS][WIDTH];
    const device d = open_device();
    const cl_command_queue queue = open_queue(d);
    open_model(&m, d);
    decoder prompt = open_decoder(d, &m, PROMPT), step = open_decoder(d, &m, 1), whole = open_decoder(d, &m, TOKENS);
    for (int t = 0; t < PROMPT; ++t) {
        m.text[t] = t * 7 % WORDS;
    }
    decode(&m, &prompt, queue, 0, hidden);
    for (size_t t = PROMPT; t < TOKENS; ++t) {
        decode(&m, &step, queue, t, hidden);
    }
    decode(&m, &whole, queue, 0, expected);
    float worst = 0.0F;
    for (size_t t = 0; t < TOKENS; ++t) {
        for (size_t c = 0; c < WIDTH; ++c) {
            worst = fmaxf(worst, fabsf(hidden[t][c] - expected[t][c]));
        }
    }
    printf("a prompt of %d tokens and %d steps; largest difference from one call: %.1e\n", PROMPT, STEPS,
           (double)worst);
    EXPECT(worst < 1e-4F);

    close_decoder(&prompt), close_decoder(&step), close_decoder(&whole);
    release_each(m.weights, LAYERS), release_each(m.cache_k, LAYERS), release_each(m.cache_v, LAYERS);
    release_each(&m.attention.lengths, 1);
    CL(clReleaseCommandQueue(queue));
    close_device(d);
    return 0;
}
