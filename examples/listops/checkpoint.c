/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: a header, the plan's text, the curve, then parameters and AdamW's two averages, and a checksum of all
 * before it. In the byte order of the machine.
 */
#include "training.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- plans ------------------------------------------------------------------------------------------------------- */

char *plan_describe(const plan *p)
{
    const task *const t = &p->task;
    const settings *const s = &p->settings;
    char *text = NULL;
    const int length = asprintf(
        &text,
        "variant %s, heads %d, components %d, layers %d, width %d, head size %d, hidden %d, pooling %s, tokens %d, "
        "lengths %d to "
        "%d, "
        "depth %d, arguments %d, nested %.17g, seed %" PRIu64 ", steps %" PRId64 ", warm-up %" PRId64
        ", rate %.17g, decay %.17g, prior %s every %" PRId64 ", report %" PRId64 ", test every %" PRId64 " of %" PRId64,
        clmgk_variant_name(s->variant), s->heads, s->components, s->layers, s->width, s->head_size, s->hidden,
        s->first ? "first" : "mean", s->rows, t->min_length, t->max_length, t->depth, t->arguments, t->nested, t->seed,
        p->steps, p->warm_up, p->rate, p->decay, s->em ? "em" : "sgd", s->em ? p->em_every : 0, p->report,
        p->test_every, p->test_count);
    if (length < 0) {
        fail(EXIT_SYSTEM, "out of memory");
    }
    return text;
}

/* ---- files --------------------------------------------------------------------------------------------------------
 */

#define MAGIC "listops\n"
enum { VERSION = 1 };

typedef struct header {
    char magic[8];
    uint32_t version, plan_bytes; /* of the plan's text, its 0 included */
    uint64_t count;               /* floats of each of the three arrays */
    int64_t step, tokens, points;
    uint64_t example;
    double seconds, loss;
    int64_t right, answers;
} header;

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *const at = data;
    for (size_t i = 0; i < bytes; ++i) {
        hash = (hash ^ at[i]) * 0x100000001B3U;
    }
    return hash;
}

static void put(output *o, uint64_t *hash, const void *data, size_t bytes)
{
    output_write(o, data, bytes);
    *hash = hash_bytes(*hash, data, bytes);
}

void checkpoint_save(const run *r, const char *path)
{
    const progress *const p = &r->progress;
    const network *const n = &r->network;
    const size_t bytes = n->layout.count * sizeof(float);
    const clmgk_buffer arrays[] = {n->values, n->mean, n->square};
    char *const text = plan_describe(&r->plan);
    float *const values = allocate(n->layout.count, sizeof(float));
    header h = {.magic = MAGIC,
                .version = VERSION,
                .plan_bytes = (uint32_t)strlen(text) + 1,
                .count = n->layout.count,
                .step = p->step,
                .tokens = p->tokens,
                .points = p->points,
                .example = p->example,
                .seconds = p->seconds,
                .loss = p->since.loss,
                .right = p->since.right,
                .answers = p->since.count};
    uint64_t hash = 0;
    output o = output_open(path);
    put(&o, &hash, &h, sizeof(h));
    put(&o, &hash, text, h.plan_bytes);
    put(&o, &hash, p->curve, (size_t)p->points * sizeof(point));
    for (size_t i = 0; i < 3; ++i) {
        device_read(n->device, arrays[i], bytes, values);
        put(&o, &hash, values, bytes);
    }
    output_write(&o, &hash, sizeof(hash));
    output_commit(&o);
    free(values);
    free(text);
}

/* The whole file; NULL: there is none. */
static char *read_file(const char *path, size_t *bytes)
{
    FILE *const file = fopen(path, "rb");
    char *data = NULL;
    long size = 0;
    if (file == NULL && errno == ENOENT) {
        return NULL;
    }
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0) {
        fail(EXIT_USAGE, "%s: cannot read it: %s", path, strerror(errno));
    }
    data = allocate((size_t)size + 1, 1);
    if (fread(data, 1, (size_t)size, file) != (size_t)size) {
        fail(EXIT_USAGE, "%s: cannot read it: %s", path, strerror(errno));
    }
    (void)fclose(file);
    *bytes = (size_t)size;
    return data;
}

/* Refuses what this run did not write. The checksum comes before anything that depends on the content. */
static void check(const run *r, const char *path, const char *data, size_t bytes, header *h)
{
    uint64_t hash = 0;
    if (bytes >= sizeof(*h)) {
        (void)memcpy(h, data, sizeof(*h));
    }
    if (bytes < sizeof(*h) + sizeof(hash) || memcmp(h->magic, MAGIC, sizeof(h->magic)) != 0) {
        fail(EXIT_USAGE, "%s: no checkpoint of listops", path);
    }
    if (h->version != VERSION) {
        fail(EXIT_USAGE, "%s: a checkpoint of version %u: expected %d", path, (unsigned)h->version, VERSION);
    }
    (void)memcpy(&hash, data + bytes - sizeof(hash), sizeof(hash));
    if (hash != hash_bytes(0, data, bytes - sizeof(hash))) {
        fail(EXIT_USAGE, "%s: damaged: its checksum is not that of its content", path);
    }
    char *const text = plan_describe(&r->plan);
    if (h->plan_bytes != strlen(text) + 1 || memcmp(data + sizeof(*h), text, h->plan_bytes) != 0) {
        fail(EXIT_USAGE, "%s: a checkpoint of another run: \"%.*s\": expected \"%s\"", path, (int)h->plan_bytes,
             data + sizeof(*h), text);
    }
    free(text);
    if (h->count != r->network.layout.count ||
        bytes != sizeof(*h) + h->plan_bytes + (size_t)h->points * sizeof(point) + 3 * h->count * sizeof(float) + 8) {
        fail(EXIT_USAGE, "%s: a checkpoint of a network with %zu numbers: expected %zu", path, (size_t)h->count,
             r->network.layout.count);
    }
}

bool checkpoint_load(run *r, const char *path)
{
    progress *const p = &r->progress;
    const network *const n = &r->network;
    const clmgk_buffer arrays[] = {n->values, n->mean, n->square};
    const size_t array_bytes = n->layout.count * sizeof(float);
    size_t bytes = 0;
    header h = {0};
    char *const data = read_file(path, &bytes);
    if (data == NULL) {
        return false;
    }
    check(r, path, data, bytes, &h);
    const char *at = data + sizeof(h) + h.plan_bytes;
    (void)memcpy(p->curve, at, (size_t)h.points * sizeof(point));
    at += (size_t)h.points * sizeof(point);
    for (size_t i = 0; i < 3; ++i) {
        device_write(n->device, arrays[i], array_bytes, at);
        at += array_bytes;
    }
    p->step = h.step, p->tokens = h.tokens, p->points = h.points;
    p->example = h.example, p->seconds = h.seconds;
    p->since = (score){h.loss, h.right, h.answers};
    free(data);
    return true;
}
