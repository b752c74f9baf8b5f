/* SPDX-License-Identifier: Apache-2.0 */
/* The cases, in the order of their turns, and what differs between their kinds: parameters, limits, the cache. */
#include "tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Each product is measured with the three ways in which layers hold their matrices: as they are, B transposed (weights
 * [out, in]), A transposed (the weights' gradient). */
#define LAYOUTS      3
#define CLBLAST      "clblast"
#define UNITS        "matrix" /* the provider of products with a table of its own */
#define MAX_FAMILIES 8        /* three of attention in each pass, products, CLBlast */
#define FEW_QUERIES  32       /* fewer say nothing about another engine */

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Measurements with another driver say nothing about this one. */
static void make_key(const clmgk_device_info *device, tune_case *c)
{
    int length = snprintf(c->key, sizeof(c->key), "%s, %s, %" PRIu32 " units: ", device->driver, device->architecture,
                          device->compute_units);
    char *const rest = c->key + length;
    const size_t size = sizeof(c->key) - (size_t)length;
    if (c->kind != TUNE_ATTENTION) {
        snprintf(rest, size, "%s", c->name);
        return;
    }
    const clmgk_attention_desc *d = &c->item->desc;
    length = snprintf(rest, size,
                      "%s %s %s b%" PRId64 " h%" PRId64 " g%" PRId64 " m%" PRId64 " n%" PRId64 " s%" PRId64 " d%" PRId64
                      " e%" PRId64 " causal%d window%d,%" PRId64 ",%" PRId64 " packed%" PRId64 " bias%d,%" PRId64
                      ",%" PRId64 ",%" PRId64 ",%" PRId64 " alibi%d sinks%d dropout%g gradients%" PRIu32,
                      bench_pass_name(c->item->pass), clmgk_variant_name(d->variant), tool_dtypes_text(d).text,
                      d->batch, d->heads, d->kv_heads, d->components, d->length, d->length_k, d->head_size,
                      d->value_size, (int)d->causal, (int)d->use_window, d->window_left, d->window_right, d->sequences,
                      (int)d->use_bias, d->bias_batch, d->bias_heads, d->bias_length, d->bias_length_k,
                      (int)d->use_alibi, (int)d->use_sinks, d->dropout, d->gradients);
    if (tool_is_linear(d->variant))
        snprintf(rest + length, size - (size_t)length, " %s-%" PRId64 " state%d", clmgk_feature_name(d->feature),
                 d->features, (int)d->use_state);
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

tune_text tune_point_text(const tune_space *space, size_t count, const int32_t *values, const int32_t *defaults)
{
    tune_text list = {""};
    size_t length = 0;
    for (size_t i = 0; i < count && length < sizeof(list.text); i++) {
        if (!defaults || values[i] != defaults[i])
            length += (size_t)snprintf(list.text + length, sizeof(list.text) - length, "%s%s=%d", length ? "," : "",
                                       space->parameters[i].name, (int)values[i]);
    }
    return list;
}

/* The values that a text names; false where one is missing. */
static bool read_values(const tune_space *space, const char *text, int32_t *values)
{
    size_t found = 0;
    while (*text) {
        const size_t length = strcspn(text, "=");
        for (size_t i = 0; i < space->count; i++) {
            const char *name = space->parameters[i].name;
            if (strlen(name) == length && strncmp(name, text, length) == 0) {
                values[i] = (int32_t)strtol(text + length + 1, NULL, 10);
                found++;
            }
        }
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return found == space->count;
}

bool tune_read(const tune_case *c, const json_t *object, tune_candidate *found)
{
    const char *choice = json_string_value(json_object_get(object, "choice"));
    const char *parameters = json_string_value(json_object_get(object, "parameters"));
    *found = (tune_candidate){.ratio = 0};
    while (choice && found->space < c->place.count && strcmp(choice, c->place.spaces[found->space].name) != 0)
        found->space++;
    return choice && parameters && found->space < c->place.count &&
           read_values(&c->place.spaces[found->space], parameters, found->values);
}

bool tune_take_usual(tune_case *c, const json_t *object, clmgk_device_class device_class)
{
    static const char gpu[] = "GEMMK=0,KREG=1,KWG=16,KWI=2,MDIMA=8,MDIMC=8,MWG=64,NDIMB=8,NDIMC=8,NWG=64,SA=1,SB=1,"
                              "STRM=0,STRN=0,VWM=4,VWN=4,XGEMM_MIN_INDIRECT_SIZE=192";
    static const char cpu[] = "GEMMK=1,KREG=1,KWG=1,KWI=1,MDIMA=2,MDIMC=2,MWG=32,NDIMB=4,NDIMC=4,NWG=32,SA=0,SB=0,"
                              "STRM=0,STRN=0,VWM=8,VWN=1,XGEMM_MIN_INDIRECT_SIZE=32";
    tune_candidate usual;
    const bool known = tune_read(c, object, &usual);
    if (!known && (c->kind != TUNE_CLBLAST ||
                   !read_values(c->place.spaces, device_class == CLMGK_DEVICE_GPU ? gpu : cpu, usual.values)))
        return false;
    usual.space = known ? usual.space : 0;
    c->usual = usual.space;
    c->place.defaults[c->usual] = usual;
    return c->place.available[c->usual] = true;
}

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

static clmgk_tuned_pass pass_of(const bench_case *item)
{
    return item->pass == BENCH_BACKWARD ? CLMGK_TUNED_BACKWARD : CLMGK_TUNED_FORWARD;
}

static bool check_attention(const tune_case *c, size_t space, const char *parameters)
{
    const clmgk_tuned tuned = {.choice = c->place.spaces[space].name, .parameters = parameters};
    return clmgk_tuning_check(c->library, &c->item->desc, pass_of(c->item), &tuned, NULL) == CLMGK_OK;
}

static bool is_legal(void *user, const tune_candidate *x)
{
    const tune_case *c = user;
    const tune_space *space = &c->place.spaces[x->space];
    if (c->kind == TUNE_ATTENTION)
        return check_attention(c, x->space, tune_point_text(space, space->count, x->values, NULL).text);
    for (size_t i = 0; i < space->count; i++) { /* units that a device lacks are not emulated */
        if (strcmp(space->parameters[i].name, "unit") == 0 && x->values[i] == 0)
            return false;
    }
    const tune_text bound = tune_point_text(space, c->family->bound[x->space], x->values, NULL);
    return space->count == 0 || clmgk_tunable_check(c->family->table[x->space], bound.text, NULL) == CLMGK_OK;
}

bool tune_may_try(const tune_case *c, size_t space)
{
    /* a plan's passes have one engine: the backward pass can only take what the forward pass has */
    return c->kind != TUNE_ATTENTION || (c->item->desc.length >= FEW_QUERIES && check_attention(c, space, ""));
}

/* Appends a space; more tables follow the first one (NULL ends them), whose constraints are checked. */
static tool_exit add_space(tune_family *family, const char *name, const char *const *tables, tool_error *error)
{
    tune_space *space = &family->spaces[family->count];
    if (family->count == TUNE_MOST_SPACES)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "%s: more of its kind than this program knows", name);
    space->name = name;
    family->table[family->count] = *tables;
    for (; *tables; tables++) {
        const size_t room = TUNE_MOST_PARAMETERS - space->count;
        size_t more = 0;
        if (room > 0)
            space->parameters[space->count] = (clmgk_tunable)CLMGK_TUNABLE_INIT;
        TOOL_TRY(tool_check_library(
            clmgk_tunable_list(*tables, space->parameters + space->count, room, &more, &error->library), error));
        if (more > room)
            return tool_fail(error, TOOL_SYSTEM_ERROR, "table %s: more tunables than this program knows", *tables);
        if (space->count == 0)
            family->bound[family->count] = more;
        space->count += more;
    }
    family->count++;
    return TOOL_DONE;
}

static tool_exit add_providers(tune_family *family, const tune_report *report, clmgk_dtype dtype, tool_error *error)
{
    for (size_t i = 0; clmgk_gemm_provider(i); i++) {
        const char *const name = clmgk_gemm_provider(i), *const tables[] = {"gemm-" UNITS, NULL};
        clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
        TOOL_TRY(
            tool_check_library(clmgk_gemm_provider_state(report->device.device_id, i, &info, &error->library), error));
        if (info.dtypes & 1U << (unsigned)dtype)
            TOOL_TRY(add_space(family, name, tables + (strcmp(name, UNITS) != 0), error));
    }
    return TOOL_DONE;
}

static tool_exit add_spaces(tune_family *family, const tune_report *report, const tune_case *c, tool_error *error)
{
    static const char *const clblast[] = {"clblast-xgemm", "clblast-routine", NULL};
    if (c->kind == TUNE_CLBLAST)
        return add_space(family, CLBLAST, clblast, error);
    if (c->kind == TUNE_PRODUCT)
        return add_providers(family, report, c->product.dtype, error);
    for (clmgk_engine e = CLMGK_ENGINE_LANE; clmgk_engine_name(e); e++) {
        const char *const tables[] = {clmgk_tunable_table_of(c->item->desc.variant, e), NULL};
        TOOL_TRY(add_space(family, clmgk_engine_name(e), tables, error));
    }
    return TOOL_DONE;
}

static bool is_of(const tune_family *family, const tune_case *c)
{
    const tune_case *other = family->first;
    return other->kind == c->kind &&
           (c->kind != TUNE_ATTENTION ||
            (other->item->pass == c->item->pass &&
             strcmp(family->table[0], clmgk_tunable_table_of(c->item->desc.variant, CLMGK_ENGINE_LANE)) == 0));
}

static tool_exit take_family(tune_report *report, tune_case *c, tool_error *error)
{
    tune_family *family = report->families;
    while (family < report->families + report->family_count && !is_of(family, c))
        family++;
    if (family == report->families + MAX_FAMILIES)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "%s: more tables than this program knows", c->key);
    c->family = family;
    if (!family->first) {
        family->first = c;
        report->family_count++;
        TOOL_TRY(add_spaces(family, report, c, error));
    }
    c->place.spaces = family->spaces;
    c->place.count = family->count;
    c->place.legal = is_legal;
    c->place.user = c;
    return TOOL_DONE;
}

static double size_axis(int64_t size)
{
    return log2(fmax(1, (double)size));
}

/* Kinds, and sizes in factors of two. */
static void set_axes(tune_case *c)
{
    const tool_product *p = &c->product;
    double axes[TUNE_AXES] = {size_axis(p->m), size_axis(p->n), size_axis(p->k), p->transpose_a, p->transpose_b};
    if (c->kind == TUNE_ATTENTION) {
        const clmgk_attention_desc *d = &c->item->desc;
        const double sizes[] = {size_axis(d->components), size_axis(d->head_size), size_axis(d->length),
                                size_axis(d->length_k), size_axis(d->batch * d->heads)};
        memcpy(axes, sizes, sizeof(sizes));
        axes[5] = (double)d->variant;
        axes[6] = (double)d->dtype;
        axes[7] = clmgk_array_dtype(d, CLMGK_ARRAY_K) != d->dtype;
        axes[8] = clmgk_array_dtype(d, CLMGK_ARRAY_V) != d->dtype;
        axes[9] = clmgk_array_dtype(d, CLMGK_ARRAY_O) != d->dtype;
        axes[10] = d->causal != 0;
    }
    memcpy(c->place.axes, axes, sizeof(axes));
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

tool_exit tune_store(const tune_case *c, const char *cache_dir, tool_error *error)
{
    const clmgk_tuned tuned = {
        .choice = c->choice, .parameters = c->parameters, .time_ms = c->tuned_ms, .default_ms = c->default_ms};
    clmgk_status status = CLMGK_OK;
    if (c->kind == TUNE_ATTENTION) {
        status = clmgk_tuning_store(c->library, cache_dir, &c->item->desc, pass_of(c->item), &tuned, &error->library);
    } else if (c->kind == TUNE_PRODUCT) {
        const clmgk_gemm_desc desc = tool_product_desc(&c->product);
        status = clmgk_gemm_tuning_store(c->library, cache_dir, &desc, &tuned, &error->library);
    } else if (c->outcome == TUNE_FASTER) { /* else what is in use stays */
        status = clmgk_gemm_tuning_store_device(c->library, cache_dir, CLMGK_DTYPE_F32, &tuned, &error->library);
    }
    return tool_check_library(status, error);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static int by_cost(const void *a, const void *b)
{
    const tune_case *x = a, *y = b;
    return (x->item->flops > y->item->flops) - (x->item->flops < y->item->flops);
}

static void add_pass(tune_report *report, bench_pass pass)
{
    tune_case *const first = report->cases + report->count;
    for (size_t g = 0; g < report->request.shape_count; g++) {
        for (size_t i = 0; i < report->groups[g].count; i++) {
            const bench_case *item = &report->groups[g].cases[i];
            if (item->pass != pass)
                continue;
            tune_case *const c = &report->cases[report->count++];
            *c = (tune_case){.kind = TUNE_ATTENTION, .group = g, .index = i, .item = item};
            snprintf(c->name, sizeof(c->name), "%s %s", bench_shape_name(item->shape), bench_case_label(item).text);
        }
    }
    qsort(first, (size_t)(report->cases + report->count - first), sizeof(*first), by_cost);
}

/* The shapes in all layouts; CLBlast's parameters. */
static void add_products(const tune_options *options, tune_report *report)
{
    for (size_t i = 0; i < LAYOUTS * options->product_count; i++) {
        tune_case *const c = &report->cases[report->count++];
        *c = (tune_case){.kind = TUNE_PRODUCT, .group = i / LAYOUTS, .index = i % LAYOUTS};
        c->product = options->products[c->group];
        c->product.transpose_b = c->index == 1;
        c->product.transpose_a = c->index == 2;
        snprintf(c->name, sizeof(c->name), "product %s", tool_product_name(&c->product).text);
    }
    if (options->product_count > 0 && options->products[0].dtype == CLMGK_DTYPE_F32)
        report->cases[report->count++] = (tune_case){.kind = TUNE_CLBLAST, .name = CLBLAST};
}

/* Forward passes come before backward passes, which use the parameters found for their forward pass. Within each, the
 * cheapest cases come first, because they teach most in the same time. */
tool_exit tune_make_cases(const tune_options *options, clmgk_context *library, tune_report *report, tool_error *error)
{
    size_t count = LAYOUTS * options->product_count + 1;
    report->request = options->request;
    TOOL_TRY(bench_make_groups(&report->request, false, &report->groups, error));
    for (size_t g = 0; g < report->request.shape_count; g++)
        count += report->groups[g].count;
    report->cases = calloc(count, sizeof(*report->cases));
    report->families = calloc(MAX_FAMILIES, sizeof(*report->families));
    if (!report->cases || !report->families)
        return tool_fail_memory(error, "the results");
    for (int pass = 0; pass < BENCH_PASSES; pass++)
        add_pass(report, (bench_pass)pass);
    add_products(options, report);
    for (size_t i = 0; i < report->count; i++) {
        report->cases[i].library = library;
        report->cases[i].ratio = 1;
        make_key(&report->device, &report->cases[i]);
        set_axes(&report->cases[i]);
        TOOL_TRY(take_family(report, &report->cases[i], error));
    }
    return TOOL_DONE;
}

void tune_report_free(tune_report *report)
{
    if (report->groups)
        bench_free_groups(&report->request, report->groups);
    free(report->measured.list);
    free(report->families);
    free(report->cases);
    *report = (tune_report){.cases = NULL};
}
