/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the example: expressions, gradients of the whole network, learning, the same bits again. */
#include "training.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect(bool condition, const char *what)
{
    if (!condition) {
        fail(EXIT_CHECK, "test failed: %s", what);
    }
}

static plan small_plan(void)
{
    plan p = {.steps = 6, .warm_up = 2, .rate = 3e-3, .decay = 0.01, .em_every = 2, .report = 2, .test_count = 4};
    p.task = (task){.seed = 5, .min_length = 6, .max_length = 40, .depth = 3, .arguments = 5, .nested = 0.3};
    p.settings = (settings){.layers = 2, .width = 32, .head_size = 16, .hidden = 48, .rows = 128};
    p.settings.min_length = p.task.min_length, p.settings.max_length = p.task.max_length;
    p.settings.seed = p.task.seed;
    parse_variant("mgk:2", &p.settings);
    return p;
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static int32_t parse(const char *text, int32_t *tokens)
{
    static const char *const names[] = {"[MIN", "[MAX", "[MED", "[SM", "]"};
    int32_t length = 0;
    char copy[200], *rest = NULL;
    (void)snprintf(copy, sizeof(copy), "%s", text);
    for (const char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        tokens[length] = word[0] - '0';
        for (int32_t i = 0; i < 5; ++i) {
            tokens[length] = strcmp(word, names[i]) == 0 ? TOKEN_MIN + i : tokens[length];
        }
        ++length;
    }
    return length;
}

static void test_by_hand(void)
{
    static const struct {
        const char *text;
        int32_t value;
    } list[] = {{"[MAX 2 9 [MIN 4 7 ] 0 ]", 9},
                {"[MIN 5 ]", 5},
                {"[MED 1 2 9 ]", 2},
                {"[MED 8 1 4 3 ]", 3}, /* (3 + 4) / 2, rounded down */
                {"[SM 9 8 7 ]", 4},
                {"[SM [MAX 3 8 ] [MED 5 6 7 ] [SM 9 9 ] ]", 2},
                {"[MIN [MAX [SM 5 5 ] 1 ] 3 [MED 9 9 ] ]", 1},
                {"[MAX 1 2", -1},
                {"[MAX ]", -1},
                {"[MAX 1 ] 2", -1},
                {"7", -1},
                {"] 7", -1}};
    for (size_t i = 0; i < sizeof(list) / sizeof(*list); ++i) {
        int32_t tokens[50];
        const int32_t length = parse(list[i].text, tokens);
        expect(evaluate(tokens, length) == list[i].value, list[i].text);
    }
}

/* Another way than evaluate(): the innermost operation is replaced by its value until one digit is left. */
static int32_t reduce(int32_t *tokens, int32_t length)
{
    while (length > 1) {
        int32_t end = 0, first = 0;
        while (tokens[end] != TOKEN_END) {
            ++end;
        }
        first = end;
        while (tokens[first] < 10 || tokens[first] == TOKEN_END) {
            --first;
        }
        const int32_t count = end - first - 1;
        int32_t *const digit = tokens + first + 1, sum = 0;
        for (int32_t i = 0; i < count; ++i) { /* sorted by exchanges */
            for (int32_t k = i; k > 0 && digit[k] < digit[k - 1]; --k) {
                const int32_t other = digit[k];
                digit[k] = digit[k - 1], digit[k - 1] = other;
            }
        }
        for (int32_t i = 0; i < count; ++i) {
            sum += digit[i];
        }
        const int32_t low = digit[(count - 1) / 2], high = digit[count / 2];
        const int32_t values[] = {digit[0], digit[count - 1], (low + high) / 2, sum % 10};
        tokens[first] = values[tokens[first] - TOKEN_MIN];
        (void)memmove(tokens + first + 1, tokens + end + 1, (size_t)(length - end - 1) * sizeof(*tokens));
        length -= end - first;
    }
    return tokens[0];
}

static void test_generator(void)
{
    const task t = {.seed = 3, .min_length = 20, .max_length = 120, .depth = 4, .arguments = 10, .nested = 0.3};
    int32_t tokens[120], again[120], answer = 0, answer_again = 0, lengths = 0, seen = 0;
    for (uint64_t i = 0; i < 500; ++i) {
        const int32_t length = generate(&t, STREAM_TRAINING, i, tokens, &answer);
        expect(length >= 20 && length <= 120, "an example's length");
        expect(generate(&t, STREAM_TRAINING, i, again, &answer_again) == length && answer == answer_again &&
                   memcmp(tokens, again, (size_t)length * sizeof(*tokens)) == 0,
               "an example is the same again");
        expect(reduce(again, length) == answer, "an example's answer");
        expect(generate(&t, STREAM_TEST, i, again, &answer_again) != length ||
                   memcmp(tokens, again, (size_t)length * sizeof(*tokens)) != 0,
               "test and training differ");
        lengths |= 1 << (length / 30);
        seen |= 1 << answer;
    }
    expect(lengths == 0x1F && seen == 0x3FF, "all lengths and answers occur");
}

static void test_batches(void)
{
    plan p = small_plan();
    batch b;
    batch_open(&b, &p.settings);
    for (uint64_t next = 0; next < 100;) {
        const uint64_t first = next;
        next = batch_fill(&b, &p.task, STREAM_TRAINING, next, 100);
        expect(next > first && b.count == (int32_t)(next - first), "a batch has the examples that it says");
        expect(b.offsets[b.first] == 0 && b.offsets[b.first + b.count] == b.used && b.offsets[b.capacity] == b.rows,
               "a batch's offsets cover all rows");
        for (int32_t t = 0; t < b.capacity; ++t) {
            const int32_t *const tokens = b.tokens + b.offsets[t], length = b.offsets[t + 1] - b.offsets[t];
            const bool answered = t >= b.first && t < b.first + b.count;
            expect(b.answers[t] == (answered ? evaluate(tokens, length) : -1), "a batch's answers");
        }
    }
    batch_close(&b);
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

static double loss_of(run *r)
{
    network_forward(&r->network, 1);
    const score s = network_score(&r->network);
    return s.loss / (double)s.count;
}

/* Each array is moved along its gradient, to both sides: the loss changes by the gradient's length. */
static void test_gradients(run *r)
{
    enum { SIDES = 2 };
    const double step = 1e-2;
    network *const n = &r->network;
    const size_t bytes = n->layout.count * sizeof(float);
    float *const values = allocate(n->layout.count, sizeof(float)), *const moved =
                                                                        allocate(n->layout.count, sizeof(float));
    float *const gradients = allocate(n->layout.count, sizeof(float));
    (void)batch_fill(&r->batch, &r->plan.task, STREAM_TRAINING, 0, UINT64_MAX);
    network_load(n, &r->batch);
    network_forward(n, 1);
    network_backward(n, 1);
    device_read(n->device, n->values, bytes, values);
    device_read(n->device, n->gradients, bytes, gradients);
    for (size_t k = 0; k < n->layout.arrays; ++k) {
        const parameter *const p = &n->layout.list[k];
        double length = 0.0, loss[SIDES];
        for (size_t i = p->at; i < p->at + p->count; ++i) {
            length += (double)gradients[i] * gradients[i];
        }
        length = sqrt(length);
        for (int side = 0; side < SIDES; ++side) {
            (void)memcpy(moved, values, bytes);
            for (size_t i = p->at; i < p->at + p->count; ++i) {
                moved[i] += (float)((side == 0 ? step : -step) * gradients[i] / length);
            }
            device_write(n->device, n->values, bytes, moved);
            loss[side] = loss_of(r);
        }
        const double slope = (loss[0] - loss[1]) / (2.0 * step);
        (void)printf("%-16s gradient %.6f, slope %.6f\n", p->name, length, slope);
        expect(length > 0.0 && fabs(slope - length) < 0.01 * length + 2e-5, p->name);
    }
    device_write(n->device, n->values, bytes, values);
    free(values);
    free(moved);
    free(gradients);
}

static void test_overfit(run *r)
{
    network *const n = &r->network;
    const double first = loss_of(r);
    for (int64_t step = 1; step <= 60; ++step) {
        network_forward(n, 1);
        network_backward(n, 1);
        network_adamw(n, step, 3e-3F, 0.0F);
    }
    const double last = loss_of(r);
    (void)printf("a single batch: loss %.4f, then %.4f\n", first, last);
    expect(last < 0.1 * first, "a single batch is learned");
}

static void test_maximise(run *r)
{
    network *const n = &r->network;
    const parameter *const prior = n->layer[1].prior;
    float values[4];
    network_load(n, &r->batch);
    network_forward(n, 1);
    network_maximise(n);
    expect(prior->count == 4, "the prior is [2,2]");
    device_read(n->device, (clmgk_buffer){n->values.memory, prior->at}, sizeof(values), values);
    for (size_t h = 0; h < 2; ++h) {
        const float *const pi = values + 2 * h;
        (void)printf("prior after a M-step: %.6f %.6f\n", (double)pi[0], (double)pi[1]);
        expect(fabsf(pi[0] + pi[1] - 1.0F) < 1e-5F && fabsf(pi[0] - 0.5F) > 1e-4F, "the M-step's prior");
    }
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* Trains to `until` with a checkpoint, if there is a name for one; the parameters' digest. */
static uint64_t train(device *d, const plan *p, const char *checkpoint, int64_t until)
{
    const watch w = {.name = "test", .checkpoint = checkpoint, .until = until, .quiet = true};
    run r;
    run_open(&r, d, p);
    const bool resumed = checkpoint && checkpoint_load(&r, checkpoint);
    expect(resumed == (checkpoint && until == 0), "a checkpoint is found where there is one");
    expect(run_train(&r, &w) == (until == 0), "training ends at the last step");
    const uint64_t digest = run_digest(&r);
    expect(r.progress.points == (until > 0 ? until : p->steps) / p->report, "the curve is whole");
    run_close(&r);
    return digest;
}

static void test_same_bits(device *d, const plan *p)
{
    char path[] = "/tmp/listops-test-XXXXXX";
    const int file = mkstemp(path);
    expect(file >= 0 && close(file) == 0 && unlink(path) == 0, "a temporary file");
    const uint64_t first = train(d, p, NULL, 0), second = train(d, p, NULL, 0);
    expect(first == second, "the same bits again");
    (void)train(d, p, path, 3); /* between two points of the curve */
    expect(train(d, p, path, 0) == first, "a resumed run has the bits of one that was not interrupted");
    expect(unlink(path) == 0, "the checkpoint is there");
}

int main(void)
{
    plan p = small_plan();
    device d;
    run r;
    test_by_hand();
    test_generator();
    test_batches();
    (void)setenv("OMP_WAIT_POLICY", "passive", 0);
    device_open(&d, NULL);
    run_open(&r, &d, &p);
    test_gradients(&r);
    r.network.settings.first = true; /* what is pooled is an argument of kernels */
    test_gradients(&r);
    test_overfit(&r);
    test_same_bits(&d, &p); /* beside the other run: its programs are there */
    run_close(&r);
    p.settings.em = true;
    run_open(&r, &d, &p);
    (void)batch_fill(&r.batch, &p.task, STREAM_TRAINING, 0, UINT64_MAX);
    test_maximise(&r);
    run_close(&r);
    device_close(&d);
    return EXIT_DONE;
}
