/* SPDX-License-Identifier: Apache-2.0 */
/* The cases, in the order of their turns, and what differs between their kinds: parameters, limits, the cache. */
#include "tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Each product is measured with the three ways in which layers hold their matrices: as they are, B transposed (weights
 * [out, in]), A transposed (the weights' gradient). */
#define LAYOUTS     3
#define CLBLAST     "clblast"
#define UNITS       "matrix" /* the provider of products with a table of its own */
#define FEW_QUERIES 32       /* fewer say nothing about another engine */

/* ---- candidates as text ------------------------------------------------------------------------------------------ */

tune_text tune_point_text(const tune_space *space, const int32_t *values, const int32_t *defaults)
{
    tune_text list = {""};
    size_t length = 0;
    for (size_t i = 0; i < space->count && length < sizeof(list.text); i++) {
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
    for (; *text; text += *text == ',') {
        const size_t length = strcspn(text, "=");
        for (size_t i = 0; i < space->count; i++) {
            const char *name = space->parameters[i].name;
            if (strlen(name) == length && strncmp(name, text, length) == 0) {
                values[i] = (int32_t)strtol(text + length + 1, NULL, 10);
                found++;
            }
        }
        text += strcspn(text, ",");
    }
    return found == space->count;
}

bool tune_read(const tune_case *c, const json_t *object, tune_candidate *found)
{
    const char *choice = json_string_value(json_object_get(object, "choice"));
    const char *parameters = json_string_value(json_object_get(object, "parameters"));
    *found = (tune_candidate){.ratio = 0};
    while (choice && found->space < c->family->count && strcmp(choice, c->family->spaces[found->space].name) != 0)
        found->space++;
    return choice && parameters && found->space < c->family->count &&
           read_values(&c->family->spaces[found->space], parameters, found->values);
}

void tune_set_start(tune_case *c, clmgk_device_class device_class)
{
    static const char gpu[] = "GEMMK=0,KREG=1,KWG=16,KWI=2,MDIMA=8,MDIMC=8,MWG=64,NDIMB=8,NDIMC=8,NWG=64,SA=1,SB=1,"
                              "STRM=0,STRN=0,VWM=4,VWN=4";
    static const char cpu[] = "GEMMK=1,KREG=1,KWG=1,KWI=1,MDIMA=2,MDIMC=2,MWG=32,NDIMB=4,NDIMC=4,NWG=32,SA=0,SB=0,"
                              "STRM=0,STRN=0,VWM=8,VWN=1";
    c->search.start_count = 1;
    (void)read_values(c->search.spaces, device_class == CLMGK_DEVICE_GPU ? gpu : cpu, c->search.starts[0].values);
}

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

static clmgk_tuned_pass pass_of(const bench_case *item)
{
    return item->pass == BENCH_BACKWARD ? CLMGK_TUNED_BACKWARD : CLMGK_TUNED_FORWARD;
}

static bool check_attention(const tune_case *c, size_t space, const char *parameters)
{
    const clmgk_tuned tuned = {.choice = c->family->spaces[space].name, .parameters = parameters};
    return clmgk_tuning_check(c->library, &c->item->desc, pass_of(c->item), &tuned, NULL) == CLMGK_OK;
}

static bool is_legal(void *user, const tune_candidate *x)
{
    const tune_case *c = user;
    const tune_space *space = &c->family->spaces[x->space];
    if (c->kind == TUNE_ATTENTION)
        return check_attention(c, x->space, tune_point_text(space, x->values, NULL).text);
    for (size_t i = 0; i < space->count; i++) { /* units that a device lacks are not emulated */
        if (strcmp(space->parameters[i].name, "unit") == 0 && x->values[i] == 0)
            return false;
    }
    return space->count == 0 || clmgk_tunable_check(c->family->table[x->space],
                                                    tune_point_text(space, x->values, NULL).text, NULL) == CLMGK_OK;
}

bool tune_may_try(const tune_case *c, size_t space)
{
    /* a plan's passes have one engine: the backward pass can only take what the forward pass has */
    return c->kind != TUNE_ATTENTION || (c->item->desc.length >= FEW_QUERIES && check_attention(c, space, ""));
}

/* Appends a space with the parameters of its table (NULL: none). */
static tool_exit add_space(tune_family *family, const char *name, const char *table, tool_error *error)
{
    tune_space *space = &family->spaces[family->count];
    if (family->count == TUNE_MOST_SPACES)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "%s: more of its kind than this program knows", name);
    space->name = name;
    family->table[family->count++] = table;
    if (!table)
        return TOOL_DONE;
    *space->parameters = (clmgk_tunable)CLMGK_TUNABLE_INIT;
    TOOL_TRY(tool_check_library(
        clmgk_tunable_list(table, space->parameters, TUNE_MOST_PARAMETERS, &space->count, &error->library), error));
    return space->count <= TUNE_MOST_PARAMETERS
               ? TOOL_DONE
               : tool_fail(error, TOOL_SYSTEM_ERROR, "table %s: more tunables than this program knows", table);
}

static tool_exit add_spaces(tune_family *family, const tune_report *report, const tune_case *c, tool_error *error)
{
    if (c->kind == TUNE_CLBLAST)
        return add_space(family, CLBLAST, CLBLAST "-xgemm", error);
    for (size_t i = 0; c->kind == TUNE_PRODUCT && clmgk_gemm_provider(i); i++) {
        const char *const name = clmgk_gemm_provider(i);
        clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
        TOOL_TRY(
            tool_check_library(clmgk_gemm_provider_state(report->device.device_id, i, &info, &error->library), error));
        if (info.dtypes & 1U << (unsigned)c->product.dtype)
            TOOL_TRY(add_space(family, name, strcmp(name, UNITS) == 0 ? "gemm-" UNITS : NULL, error));
    }
    for (clmgk_engine e = CLMGK_ENGINE_LANE; c->kind == TUNE_ATTENTION && clmgk_engine_name(e); e++)
        TOOL_TRY(add_space(family, clmgk_engine_name(e), clmgk_tunable_table_of(c->item->desc.variant, e), error));
    return TOOL_DONE;
}

static const char *table_of(const tune_case *c)
{
    return c->item ? clmgk_tunable_table_of(c->item->desc.variant, CLMGK_ENGINE_LANE) : "";
}

static tool_exit take_family(tune_report *report, tune_case *c, tool_error *error)
{
    tune_family *family = report->families; /* as many as cases: there is a free one */
    while (family->first && (family->first->kind != c->kind || strcmp(table_of(family->first), table_of(c)) != 0 ||
                             (c->item && family->first->item->pass != c->item->pass)))
        family++;
    if (!family->first)
        TOOL_TRY(add_spaces(family, report, c, error));
    family->first = family->first ? family->first : c;
    c->family = family;
    c->search = (tune_search){.spaces = family->spaces, .space_count = family->count, .legal = is_legal, .user = c};
    return TOOL_DONE;
}

/* ---- what a case is ---------------------------------------------------------------------------------------------- */

static json_t *attention_json(const bench_case *item)
{
    const clmgk_attention_desc *d = &item->desc;
    json_t *object = json_pack("{s:s?, s:s, s:s, s:s, s:[I,I,I,I,I,I,I,I,b,b,f]}", "shape", item->shape->name,
                               "variant", clmgk_variant_name(d->variant), "dtype", clmgk_dtype_name(d->dtype), "pass",
                               bench_pass_name(item->pass), "modifiers", (json_int_t)d->use_window,
                               (json_int_t)d->window_left, (json_int_t)d->window_right, (json_int_t)d->sequences,
                               (json_int_t)d->bias_batch, (json_int_t)d->bias_heads, (json_int_t)d->bias_length,
                               (json_int_t)d->bias_length_k, d->use_alibi, d->use_sinks, d->dropout);
    object = tool_json_merge(object, tool_json_own_dtypes(d));
    return tool_json_merge(object, tool_json_merge(tool_json_sizes(d), tool_json_features(d)));
}

static json_t *product_json(const tool_product *p)
{
    return json_pack("{s:s, s:s?, s:I, s:I, s:I, s:b, s:b}", "dtype", clmgk_dtype_name(p->dtype), "precision",
                     p->precision != CLMGK_PRECISION_EXACT ? clmgk_precision_name(p->precision) : NULL, "m",
                     (json_int_t)p->m, "n", (json_int_t)p->n, "k", (json_int_t)p->k, "transpose_a", (int)p->transpose_a,
                     "transpose_b", (int)p->transpose_b);
}

/* Sizes count in factors of two. */
static double distance(const tune_case *a, const tune_case *b)
{
    double sum = 0;
    const char *name = NULL;
    json_t *x = NULL;
    json_object_foreach(a->what, name, x)
    {
        const json_t *y = json_object_get(b->what, name);
        sum += json_is_integer(x) && json_is_integer(y)
                   ? fabs(log2(1 + json_number_value(x)) - log2(1 + json_number_value(y)))
                   : !json_equal(x, y);
    }
    return sum;
}

/* This case's defaults with the changes by which the other's fastest candidate differs from its own. */
static bool transfer(const tune_case *other, const tune_case *c, tune_candidate *x)
{
    const tune_candidate *best = tune_fastest(&other->search, SIZE_MAX);
    if (other == c || other->family != c->family || !best || !c->known[best->space] || !other->known[best->space])
        return false;
    *x = c->defaults[best->space];
    for (size_t p = 0; p < c->family->spaces[best->space].count; p++)
        if (best->values[p] != other->defaults[best->space].values[p])
            x->values[p] = best->values[p];
    return !tune_find(&c->search, x);
}

void tune_take_starts(const tune_report *report, tune_case *c)
{
    tune_candidate x, nearest = {.space = 0};
    double last = -1, least = 0;
    while (least < INFINITY && c->search.start_count < TUNE_MOST_STARTS) {
        least = INFINITY;
        for (const tune_case *other = report->cases; other < report->cases + report->count; other++) {
            if (transfer(other, c, &x) && distance(other, c) < least && distance(other, c) > last) {
                least = distance(other, c);
                nearest = x;
            }
        }
        if (least < INFINITY)
            c->search.starts[c->search.start_count++] = nearest;
        last = least;
    }
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

tool_exit tune_store(const tune_case *c, tool_error *error)
{
    const clmgk_tuned tuned = {.choice = c->choice,
                               .parameters = c->parameters,
                               .time_ms = c->ratio * c->default_ms,
                               .default_ms = c->default_ms};
    const clmgk_gemm_desc product = tool_product_desc(&c->product);
    clmgk_status status = CLMGK_OK;
    if (c->kind == TUNE_ATTENTION)
        status = clmgk_tuning_store(c->library, NULL, &c->item->desc, pass_of(c->item), &tuned, &error->library);
    else if (c->kind == TUNE_PRODUCT)
        status = clmgk_gemm_tuning_store(c->library, NULL, &product, &tuned, &error->library);
    else if (c->outcome == TUNE_FASTER) /* else what is in use stays */
        status = clmgk_gemm_tuning_store_device(c->library, NULL, CLMGK_DTYPE_F32, &tuned, &error->library);
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
    report->families = calloc(count, sizeof(*report->families));
    if (!report->cases || !report->families)
        return tool_fail_memory(error, "the results");
    for (int pass = 0; pass < BENCH_PASSES; pass++)
        add_pass(report, (bench_pass)pass);
    add_products(options, report);
    for (tune_case *c = report->cases; c < report->cases + report->count; c++) {
        c->library = library;
        c->ratio = 1;
        c->what = c->kind == TUNE_ATTENTION ? attention_json(c->item)
                  : c->kind == TUNE_PRODUCT ? product_json(&c->product)
                                            : json_object();
        TOOL_TRY(tool_check_memory(c->what, "the cases", error));
        TOOL_TRY(take_family(report, c, error));
    }
    return TOOL_DONE;
}

void tune_report_free(tune_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        free(report->cases[i].search.list);
        json_decref(report->cases[i].what);
    }
    if (report->groups)
        bench_free_groups(&report->request, report->groups);
    free(report->families);
    free(report->cases);
    *report = (tune_report){.cases = NULL};
}
