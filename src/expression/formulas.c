/* SPDX-License-Identifier: Apache-2.0 */
/* A problem's score and mask: expressions, derivatives, and the OpenCL C of all of them. */
#include "expression/expression.h"

#include <stdio.h>
#include <string.h>

static mgk_index_class classify(const mgk_graph *graph, const mgk_node *read)
{
    uint32_t depends = 0;
    for (int a = 0; a < read->count; ++a)
        depends |= graph->nodes[read->arguments[a]].depends;
    depends &= ~(MGK_ON(BATCH) | MGK_ON(HEAD) | MGK_ON(KV_HEAD) | MGK_ON(QUERIES) | MGK_ON(KEYS) | MGK_ON_DATA);
    switch (depends) {
    case 0:
        return MGK_INDEX_HEAD;
    case MGK_ON(ROW):
        return MGK_INDEX_ROW;
    case MGK_ON(KEY):
        return MGK_INDEX_KEY;
    case MGK_ON_DIFFERENCE:
        return MGK_INDEX_DIFFERENCE;
    default:
        return MGK_INDEX_ANY;
    }
}

/* A copy of a node for *out; NULL of MGK_NONE. */
static clmgk_status extract(const mgk_graph *graph, int32_t node, mgk_expression **out, clmgk_error *error)
{
    MGK_TRY(mgk_graph_status(graph, error));
    if (node == MGK_NONE)
        return CLMGK_OK;
    *out = mgk_extract(graph, node);
    return *out ? CLMGK_OK : mgk_fail_memory(error, "an expression");
}

static clmgk_status add_read(mgk_graph *graph, int32_t root, int32_t node, mgk_formulas *f, clmgk_error *error)
{
    const int32_t slope = mgk_derive(graph, root, node);
    if (slope == MGK_NONE)
        return mgk_graph_status(graph, error);
    if (f->read_count == MGK_READS)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "score_mod: more than %d reads of arrays with gradients: expected fewer", MGK_READS);
    mgk_read *const read = &f->reads[f->read_count++];
    MGK_TRY(extract(graph, slope, &read->slope, error));
    read->capture = graph->nodes[node].slot;
    read->index = classify(graph, &graph->nodes[node]);
    return extract(graph, node, &read->place, error);
}

/* The reads in canonical order, as the score's copy has them. */
static clmgk_status add_reads(mgk_graph *graph, int32_t root, uint32_t gradients, mgk_formulas *f, clmgk_error *error)
{
    for (size_t n = 0; n < f->score->count; ++n) {
        const mgk_node *const copy = &f->score->nodes[n];
        if (copy->operation != MGK_READ || (gradients >> copy->slot & 1) == 0)
            continue;
        int32_t node = 0;
        while (graph->nodes[node].operation != MGK_READ || graph->nodes[node].hash != copy->hash)
            ++node;
        MGK_TRY(add_read(graph, root, node, f, error));
    }
    return CLMGK_OK;
}

static clmgk_status check_gradients(const mgk_formula_texts *texts, clmgk_error *error)
{
    for (size_t c = 0; c < texts->symbols.capture_count; ++c) {
        if ((texts->gradients >> c & 1) != 0 && texts->symbols.captures[c].type != MGK_FLOAT)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: '%s' is an array of ints: expected floats",
                            texts->symbols.captures[c].name);
    }
    return CLMGK_OK;
}

static clmgk_status make_score(mgk_graph *graph, const mgk_formula_texts *texts, mgk_formulas *f, clmgk_error *error)
{
    int32_t root = 0;
    MGK_TRY(mgk_parse(graph, &texts->symbols, texts->score, false, "score_mod", &root, error));
    MGK_TRY(extract(graph, root, &f->score, error));
    const int32_t s = mgk_make_leaf(graph, MGK_NAME, MGK_FLOAT, MGK_NAME_SCORE);
    MGK_TRY(extract(graph, mgk_derive(graph, root, s), &f->slope, error));
    for (size_t n = 0; n < texts->symbols.number_count && (texts->gradients >> MGK_CAPTURES & 1) != 0; ++n) {
        const int32_t number = mgk_make_leaf(graph, MGK_NUMBER, MGK_FLOAT, (uint32_t)n);
        MGK_TRY(extract(graph, mgk_derive(graph, root, number), &f->by_number[n], error));
    }
    return add_reads(graph, root, texts->gradients, f, error);
}

static clmgk_status make_mask(mgk_graph *graph, const mgk_formula_texts *texts, mgk_formulas *f, clmgk_error *error)
{
    int32_t root = 0;
    MGK_TRY(mgk_parse(graph, &texts->symbols, texts->mask, true, "mask_mod", &root, error));
    return extract(graph, root, &f->mask, error);
}

#define PARAMETERS                                                                                                     \
    "const mod_float s, const struct mod_pair pair, const struct mod_data data,\n    const mod_float ds, "

/* The functions that add a pair's part in the gradients of numbers and captured arrays. */
static void print_sums(mgk_formulas *f)
{
    mgk_text_printf(&f->code, "FUNCTION void score_mod_add_numbers(" PARAMETERS "mod_float *sums)\n{\n");
    for (int n = 0; n < MGK_NUMBERS; ++n)
        if (f->by_number[n])
            mgk_text_printf(&f->code, "    sums[%d] += mod_part(ds, score_mod_by_number_%d(s, pair, data));\n", n, n);
    mgk_text_printf(&f->code, "}\nFUNCTION void score_mod_add_reads(" PARAMETERS "const mod_sums sums)\n{\n");
    for (size_t k = 0; k < f->read_count; ++k)
        mgk_text_printf(&f->code,
                        "    mod_scatter(sums, data.captures + %u, %zu, score_mod_place_%zu(s, pair, data),\n"
                        "                mod_part(ds, score_mod_by_read_%zu(s, pair, data)));\n",
                        (unsigned)f->reads[k].capture, k, k, k);
    mgk_text_printf(&f->code, "}\n");
}

static clmgk_status print_all(const mgk_formula_texts *texts, mgk_formulas *f, clmgk_error *error)
{
    const char *const zero = "mod_const(0.0f)";
    char name[48];
    mgk_print_function(&f->code, "score_mod", true, f->score, "s");
    mgk_print_function(&f->code, "score_mod_slope", true, f->slope, texts->score ? zero : "mod_const(1.0f)");
    mgk_print_function(&f->code, "mask_mod", false, f->mask, "mod_const_int(-1)");
    mgk_print_ranges(&f->code, "mask_mod_tile", false, f->mask);
    if (f->mask && (f->mask->nodes[f->mask->count - 1].depends & MGK_ON_DATA) != 0) {
        mgk_text_printf(&f->code, "#if CLASSIFIES\n");
        mgk_print_ranges(&f->code, "mask_mod_block", true, f->mask);
        mgk_text_printf(&f->code, "#endif\n");
    }
    mgk_print_ranges(&f->mask_code, "mask_mod_block", true, f->mask);
    for (size_t n = 0; n < texts->symbols.number_count && (texts->gradients >> MGK_CAPTURES & 1) != 0; ++n) {
        (void)snprintf(name, sizeof(name), "score_mod_by_number_%zu", n);
        mgk_print_function(&f->code, name, true, f->by_number[n], zero);
    }
    for (size_t k = 0; k < f->read_count; ++k) {
        (void)snprintf(name, sizeof(name), "score_mod_by_read_%zu", k);
        mgk_print_function(&f->code, name, true, f->reads[k].slope, zero);
        (void)snprintf(name, sizeof(name), "score_mod_place_%zu", k);
        mgk_print_place(&f->code, name, f->reads[k].place);
    }
    print_sums(f);
    return f->code.failed || f->mask_code.failed ? mgk_fail_memory(error, "the OpenCL C of a score or mask") : CLMGK_OK;
}

clmgk_status mgk_formulas_make(const clmgk_allocator *allocator, const mgk_formula_texts *texts, mgk_formulas *formulas,
                               clmgk_error *error)
{
    mgk_graph graph = {.allocator = allocator};
    *formulas = (mgk_formulas){.allocator = allocator, .code.allocator = allocator, .mask_code.allocator = allocator};
    clmgk_status status = CLMGK_OK;
    MGK_TRY_GOTO(status, mgk_symbols_check(&texts->symbols, error), done);
    MGK_TRY_GOTO(status, check_gradients(texts, error), done);
    if (texts->score)
        MGK_TRY_GOTO(status, make_score(&graph, texts, formulas, error), done);
    if (texts->mask)
        MGK_TRY_GOTO(status, make_mask(&graph, texts, formulas, error), done);
    MGK_TRY_GOTO(status, print_all(texts, formulas, error), done);
done:
    mgk_graph_free(&graph);
    if (status != CLMGK_OK)
        mgk_formulas_free(formulas);
    return status;
}

void mgk_formulas_free(mgk_formulas *formulas)
{
    const clmgk_allocator *const allocator = formulas->allocator;
    mgk_free(allocator, formulas->score);
    mgk_free(allocator, formulas->mask);
    mgk_free(allocator, formulas->slope);
    for (size_t n = 0; n < MGK_NUMBERS; ++n)
        mgk_free(allocator, formulas->by_number[n]);
    for (size_t k = 0; k < formulas->read_count; ++k) {
        mgk_free(allocator, formulas->reads[k].place);
        mgk_free(allocator, formulas->reads[k].slope);
    }
    mgk_text_free(&formulas->code);
    mgk_text_free(&formulas->mask_code);
    *formulas = (mgk_formulas){.allocator = allocator};
}
