/* SPDX-License-Identifier: Apache-2.0 */
/* The cases, in the order of their turns, what differs between their kinds, and which candidate to measure next:
 * coordinate descent (docs/tuning.md). */
#include "tune.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_PARAMETERS 24
#define FAILED_SCORE    1.4  /* a failure counts as four times as slow */
#define NEW_PART        0.4  /* of a score that a new measurement decides */
#define FAR_SCORE       1e-3 /* each value that a change leaps over: nearer ones come first */
#define OTHER_RATIO     1.5  /* a choice that is slower is left alone */
#define FEW_QUERIES     32   /* fewer say nothing about another engine */
#define FEW_ROWS        8    /* fewer queries say nothing about changes */
#define KEY_SIZE        600
#define LAYOUTS         3 /* of a product: as it is, B transposed (weights [out, in]), A transposed (their gradient) */

static clmgk_tuned_pass pass_of(const tune_case *c)
{
    return c->item->pass == BENCH_BACKWARD ? CLMGK_TUNED_BACKWARD : CLMGK_TUNED_FORWARD;
}

static const char *table_of(const tune_case *c, const char *choice)
{
    clmgk_engine engine = CLMGK_ENGINE_AUTO;
    if (c->kind == TUNE_CLBLAST)
        return "clblast-xgemm";
    if (c->kind == TUNE_PRODUCT)
        return strcmp(choice, "matrix") == 0 ? "gemm-matrix" : NULL;
    (void)clmgk_engine_from_name(choice, &engine, NULL);
    return clmgk_tunable_table_of(c->item->desc.variant, engine);
}

static bool is_legal(const tune_case *c, clmgk_context *library, const char *choice, const char *parameters)
{
    const clmgk_tuned tuned = {.choice = choice, .parameters = parameters};
    const char *const table = table_of(c, choice);
    if (c->kind == TUNE_ATTENTION)
        return clmgk_tuning_check(library, &c->item->desc, pass_of(c), &tuned, NULL) == CLMGK_OK;
    /* units that a device lacks are not emulated */
    return !table || (!strstr(parameters, "unit=0") && clmgk_tunable_check(table, parameters, NULL) == CLMGK_OK);
}

tool_exit tune_store(const tune_case *c, clmgk_context *library, tool_error *error)
{
    const clmgk_tuned tuned = {.choice = tool_json_text_of(c->result, TUNE_CHOICE_KEY(c)),
                               .parameters = tool_json_text_of(c->result, "parameters"),
                               .time_ms = tool_json_number_of(c->result, "tuned_ms"),
                               .default_ms = tool_json_number_of(c->result, "default_ms")};
    const clmgk_gemm_desc product = tool_product_desc(&c->product);
    clmgk_status status = CLMGK_OK;
    if (c->kind == TUNE_ATTENTION)
        status = clmgk_tuning_store(library, NULL, &c->item->desc, pass_of(c), &tuned, &error->library);
    else if (c->kind == TUNE_PRODUCT)
        status = clmgk_gemm_tuning_store(library, NULL, &product, &tuned, &error->library);
    else if (tuned.time_ms < tuned.default_ms) /* else what is in use stays */
        status = clmgk_gemm_tuning_store_device(library, NULL, CLMGK_DTYPE_F32, &tuned, &error->library);
    return tool_check_library(status, error);
}

static int by_cost(const void *a, const void *b)
{
    const tune_case *x = a, *y = b;
    return (x->item->flops > y->item->flops) - (x->item->flops < y->item->flops);
}

static void add_pass(tune_list *list, bench_pass pass)
{
    tune_case *const first = list->cases + list->count;
    for (bench_group *group = list->groups; group < list->groups + list->request.shape_count; group++) {
        for (bench_case *item = group->cases; item < group->cases + group->count; item++) {
            if (item->pass != pass)
                continue;
            tune_case *const c = &list->cases[list->count++];
            *c = (tune_case){.kind = TUNE_ATTENTION, .group = group, .item = item, .what = bench_case_json(item)};
            snprintf(c->name, sizeof(c->name), "%s %s", bench_shape_name(item->shape), bench_case_label(item).text);
        }
    }
    qsort(first, (size_t)(list->cases + list->count - first), sizeof(*first), by_cost);
}

/* The shapes in all layouts; CLBlast's parameters, with the first shape and B transposed, as layers mostly have it. */
static void add_products(const tune_options *options, tune_list *list)
{
    for (size_t i = 0; i < LAYOUTS * options->product_count; i++) {
        tune_case *const c = &list->cases[list->count++];
        *c = (tune_case){.kind = TUNE_PRODUCT, .product = options->products[i / LAYOUTS]};
        c->product.transpose_b = i % LAYOUTS == 1;
        c->product.transpose_a = i % LAYOUTS == 2;
        c->what = tool_product_json(&c->product);
        snprintf(c->name, sizeof(c->name), "product %s", tool_product_name(&c->product).text);
    }
    if (options->product_count > 0 && options->products[0].dtype == CLMGK_DTYPE_F32) {
        tune_case *const c = &list->cases[list->count++];
        *c = (tune_case){
            .kind = TUNE_CLBLAST, .product = options->products[0], .name = "clblast", .what = json_object()};
        c->product.transpose_b = true;
    }
}

/* Forward passes come before backward passes, which use the parameters found for their forward pass. Within each, the
 * cheapest cases come first, because they teach most in the same time. */
tool_exit tune_make_cases(const tune_options *options, tune_list *list, tool_error *error)
{
    size_t count = LAYOUTS * options->product_count + 1;
    *list = (tune_list){.request = options->request};
    TOOL_TRY(bench_make_groups(&list->request, false, &list->groups, error));
    for (size_t g = 0; g < list->request.shape_count; g++)
        count += list->groups[g].count;
    list->cases = calloc(count, sizeof(*list->cases));
    list->scores = json_object();
    if (!list->cases || !list->scores)
        return tool_fail_memory(error, "the cases");
    for (int pass = 0; pass < BENCH_PASSES; pass++)
        add_pass(list, (bench_pass)pass);
    add_products(options, list);
    for (tune_case *c = list->cases; c < list->cases + list->count; c++) {
        c->known = json_object();
        c->defaults = json_object();
        if (!c->what || !c->known || !c->defaults)
            return tool_fail_memory(error, "the cases");
    }
    return TOOL_DONE;
}

tune_case *tune_find_case(const tune_list *list, const json_t *what)
{
    for (tune_case *c = list->cases; c < list->cases + list->count; c++)
        if (json_equal(c->what, what))
            return c;
    return NULL;
}

void tune_free_cases(tune_list *list)
{
    for (tune_case *c = list->cases; c < list->cases + list->count; c++) {
        json_decref(c->what);
        json_decref(c->known);
        json_decref(c->defaults);
        json_decref(c->result);
    }
    if (list->groups)
        bench_free_groups(&list->request, list->groups);
    json_decref(list->scores);
    free(list->cases);
}

/* The value behind "name="; NULL: it has none. */
static const char *find_value(const char *parameters, const char *name, size_t length)
{
    for (const char *at = parameters; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return at + length + 1;
    return NULL;
}

void tune_changes(const char *parameters, const char *defaults, tune_candidate *changes)
{
    const size_t room = sizeof(changes->parameters);
    size_t used = 0;
    changes->parameters[0] = '\0';
    for (const char *at = parameters; *at && used < room; at += strcspn(at, ","), at += *at == ',') {
        const size_t name = strcspn(at, "="), word = strcspn(at, ",");
        const char *const other = find_value(defaults, at, name);
        if (!other || strcspn(other, ",") != word - name - 1 || strncmp(other, at + name + 1, word - name - 1) != 0)
            used += (size_t)snprintf(changes->parameters + used, room - used, "%s%.*s", used ? "," : "", (int)word, at);
    }
}

/* Makes x->change. */
static void change(tune_candidate *x)
{
    char old[sizeof(x->parameters)];
    const size_t name = strcspn(x->change, "=");
    memcpy(old, x->parameters, sizeof(old));
    const char *const value = find_value(old, x->change, name);
    snprintf(x->parameters, sizeof(x->parameters), "%.*s%s%s", (int)(value - old), old, x->change + name + 1,
             value + strcspn(value, ","));
}

double tune_fastest(const tune_case *c, const char *choice, tune_candidate *fastest)
{
    double least = INFINITY;
    const char *key = NULL;
    json_t *number = NULL;
    json_object_foreach(c->known, key, number)
    {
        const double ratio = json_number_value(number);
        const size_t length = strcspn(key, " ");
        if (ratio <= 0 || ratio >= least || (choice && (strlen(choice) != length || strncmp(key, choice, length) != 0)))
            continue;
        least = ratio;
        *fastest = (tune_candidate){.from = ratio};
        snprintf(fastest->choice, sizeof(fastest->choice), "%.*s", (int)length, key);
        snprintf(fastest->parameters, sizeof(fastest->parameters), "%s", key + length + 1);
    }
    return least;
}

static const char *key_of(char key[KEY_SIZE], const char *choice, const char *rest)
{
    snprintf(key, KEY_SIZE, "%s %s", choice, rest);
    return key;
}

void tune_note(const tune_case *c, const char *choice, const char *parameters, double ratio)
{
    char key[KEY_SIZE];
    if (tool_json_number_of(c->known, key_of(key, choice, parameters)) >= 0 && (parameters[0] || !table_of(c, choice)))
        (void)json_object_set_new(c->known, key, json_real(ratio));
}

/* A change's key in the scores: decoding, of few queries, is apart. */
static const char *score_key(char key[KEY_SIZE], const tune_case *c, const char *choice, const char *change)
{
    snprintf(key, KEY_SIZE, "%s %s%s", choice, c->item && c->item->desc.length < FEW_ROWS ? "few " : "", change);
    return key;
}

void tune_learn(const tune_list *list, const tune_case *c, const json_t *line)
{
    const char *const change = tool_json_text_of(line, "change");
    const double from = tool_json_number_of(line, "from"), ratio = tool_json_number_of(line, "ratio");
    const double score = tool_json_text_of(line, "lost") ? FAILED_SCORE : log(ratio / from);
    char key[KEY_SIZE];
    if (change && tool_json_text_of(line, "choice")) {
        const double old =
            tool_json_number_of(list->scores, score_key(key, c, tool_json_text_of(line, "choice"), change));
        (void)json_object_set_new(list->scores, key, json_real(NEW_PART * score + (1 - NEW_PART) * old));
    }
}

static bool is_open(const tune_case *c, clmgk_context *library, const tune_candidate *x)
{
    char key[KEY_SIZE];
    return !json_object_get(c->known, key_of(key, x->choice, x->parameters)) &&
           is_legal(c, library, x->choice, x->parameters);
}

/* Of all changes of one parameter of `center` the one with the least score becomes *best. */
static void look_around(const tune_list *list, const tune_case *c, clmgk_context *library, const tune_candidate *center,
                        double slower, double *least, tune_candidate *best)
{
    clmgk_tunable parameters[MOST_PARAMETERS] = {CLMGK_TUNABLE_INIT};
    size_t count = 0;
    const char *const table = table_of(c, center->choice);
    if (!table || clmgk_tunable_list(table, parameters, MOST_PARAMETERS, &count, NULL) != CLMGK_OK)
        return;
    for (const clmgk_tunable *p = parameters; p < parameters + TOOL_MIN(count, MOST_PARAMETERS); p++) {
        const char *const value = find_value(center->parameters, p->name, strlen(p->name));
        size_t from = 0;
        while (value && from + 1 < p->value_count && p->values[from] != strtol(value, NULL, 10))
            from++;
        for (size_t i = 0; i < p->value_count && value; i++) {
            char key[KEY_SIZE];
            tune_candidate x = *center;
            snprintf(x.change, sizeof(x.change), "%s=%d", p->name, (int)p->values[i]);
            const double score = slower + tool_json_number_of(list->scores, score_key(key, c, x.choice, x.change)) +
                                 FAR_SCORE * fabs((double)i - (double)from);
            change(&x);
            if (i == from || score >= *least || !is_open(c, library, &x))
                continue;
            *least = score;
            *best = x;
        }
    }
}

/* CLBlast does not tell its own parameters: the search begins at these. */
static const tune_candidate clblast_gpu = {.choice = "clblast",
                                           .parameters = "GEMMK=0,KREG=1,KWG=16,KWI=2,MDIMA=8,MDIMC=8,MWG=64,NDIMB=8,"
                                                         "NDIMC=8,NWG=64,SA=1,SB=1,STRM=0,STRN=0,VWM=4,VWN=4"};
static const tune_candidate clblast_cpu = {.choice = "clblast",
                                           .parameters = "GEMMK=1,KREG=1,KWG=1,KWI=1,MDIMA=2,MDIMC=2,MWG=32,NDIMB=4,"
                                                         "NDIMC=4,NWG=32,SA=0,SB=0,STRM=0,STRN=0,VWM=8,VWN=1"};

bool tune_propose(const tune_list *list, const tune_case *c, const tool_device *device, tune_candidate *next)
{
    tune_candidate center;
    const double fastest = tune_fastest(c, NULL, &center);
    double least = INFINITY;
    const char *choice = NULL;
    json_t *defaults = NULL;
    *next = device->info.device_class == CLMGK_DEVICE_GPU ? clblast_gpu : clblast_cpu;
    const bool start = c->kind == TUNE_CLBLAST && is_open(c, device->library, next);
    json_object_foreach(c->defaults, choice, defaults)
    {
        const double ratio = start ? INFINITY : tune_fastest(c, choice, &center);
        if (ratio < OTHER_RATIO * fastest)
            look_around(list, c, device->library, &center, log(ratio / fastest), &least, next);
    }
    if (start || least < INFINITY)
        tune_note(c, next->choice, next->parameters, 0);
    return start || least < INFINITY;
}

/* Whether to look at choice number i: a provider that has the type; an engine unless the latest such case found it much
 * slower. A plan's passes have one engine: the backward pass can only take what the forward pass has. */
bool tune_may_look(const tune_list *list, const tune_case *c, const tool_device *device, size_t i, const char *choice)
{
    clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
    tune_candidate x;
    if (json_object_get(c->defaults, choice))
        return false;
    if (c->kind == TUNE_PRODUCT)
        return clmgk_gemm_provider_state(device->info.device_id, i, &info, NULL) == CLMGK_OK &&
               info.dtypes & 1U << (unsigned)c->product.dtype;
    if (c->item->desc.length < FEW_QUERIES || !is_legal(c, device->library, choice, ""))
        return false;
    for (const tune_case *other = c - 1; other >= list->cases; other--)
        if (other->item->pass == c->item->pass && json_object_get(other->defaults, choice) &&
            strcmp(table_of(c, choice), table_of(other, choice)) == 0)
            return tune_fastest(other, choice, &x) < OTHER_RATIO;
    return true;
}

/* By FNV-1a of the device and its state: measurements with another driver say nothing about this one. */
void tune_history_name(const char *folder, const clmgk_device_info *device, char path[TUNE_PATH_SIZE])
{
    char text[1024];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    snprintf(text, sizeof(text), "%s, %s, %s, %s, %" PRIu32, device->platform, device->name, device->driver,
             device->architecture, device->compute_units);
    for (const char *letter = text; *letter; letter++)
        hash = (hash ^ (unsigned char)*letter) * UINT64_C(0x100000001b3);
    snprintf(path, TUNE_PATH_SIZE, "%s/history-%016" PRIx64 ".jsonl", folder, hash);
}

tool_exit tune_history_add(const char *path, json_t *line, tool_error *error)
{
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    TOOL_TRY(tool_check_memory(text, "a line of the history", error));
    const size_t length = strlen(text);
    const int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    text[length] = '\n'; /* in the place of the NUL: one call writes all of it, or fails */
    const bool written = file >= 0 && write(file, text, length + 1) == (ssize_t)length + 1;
    free(text);
    if (file >= 0)
        close(file);
    return written ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "%s: a line can't be written", path);
}
