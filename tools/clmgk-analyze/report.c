/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static double row_entropy(const analyze_results *results, int64_t member)
{
    return results->observations.member[member].entropy / (double)results->population->rows;
}

static double nll(const analyze_results *results, int64_t sequence, int64_t head)
{
    const analyze_observations *const all = &results->observations;
    const int64_t cell = sequence * results->population->heads + head;
    return all->nll_rows[cell] > 0.0 ? all->nll_sum[cell] / all->nll_rows[cell] : 0.0;
}

/* The name of a sequence with a likelihood of its own. */
static int64_t sequence_name(const analyze_results *results, int64_t sequence)
{
    return results->population->problem.desc.sequences > 0 ? sequence : results->population->batch[sequence];
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *make_indices(const int64_t *indices, int64_t count)
{
    json_t *list = json_array();
    for (int64_t n = 0; n < count; n++)
        tool_json_append(&list, json_integer((json_int_t)indices[n]));
    return list;
}

static json_t *make_numbers(const double *numbers, int64_t count, double divisor)
{
    json_t *list = json_array();
    for (int64_t n = 0; n < count; n++)
        tool_json_append(&list, tool_json_number(numbers[n] / divisor));
    return list;
}

static json_t *make_matrices(const analyze_results *results)
{
    const analyze_population *const population = results->population;
    json_t *list = json_array();
    for (int64_t m = 0; m < population->members; m++)
        tool_json_append(&list, json_pack("{s:I, s:I, s:o, s:o}", "batch", (json_int_t)analyze_batch_of(population, m),
                                          "head", (json_int_t)analyze_head_of(population, m), "row_entropy",
                                          tool_json_number(row_entropy(results, m)), "largest",
                                          tool_json_number(results->observations.member[m].largest)));
    return list;
}

static json_t *make_ranks(const analyze_arguments *arguments, const analyze_results *results)
{
    const analyze_population *const population = results->population;
    json_t *list = json_array();
    double sum = 0.0;
    for (int64_t m = 0; m < population->members; m++) {
        const analyze_rank *const rank = &results->ranks.member[m];
        sum += (double)rank->rank;
        tool_json_append(&list, json_pack("{s:I, s:I, s:I, s:[I,I], s:o, s:o}", "batch",
                                          (json_int_t)analyze_batch_of(population, m), "head",
                                          (json_int_t)analyze_head_of(population, m), "rank", (json_int_t)rank->rank,
                                          "rank_bounds", (json_int_t)rank->low, (json_int_t)rank->high,
                                          "largest_singular_value", tool_json_number(rank->largest),
                                          "smallest_singular_value", tool_json_number(rank->smallest)));
    }
    return json_pack("{s:o, s:s, s:o, s:o}", "threshold", tool_json_number(arguments->threshold), "method",
                     results->ranks.method, "mean", tool_json_number(sum / (double)population->members), "heads", list);
}

static json_t *make_distances(const analyze_results *results)
{
    const analyze_population *const population = results->population;
    const int64_t heads = population->heads;
    json_t *matrix = json_array();
    for (int64_t h = 0; h < heads; h++) {
        json_t *row = json_array();
        for (int64_t other = 0; other < heads; other++)
            tool_json_append(&row, tool_json_number(analyze_mean_distance(population, &results->pairs, h, other)));
        tool_json_append(&matrix, row);
    }
    return json_pack("{s:I, s:o, s:o, s:o}", "pairs", (json_int_t)(population->members * (heads - 1) / 2), "mean",
                     tool_json_number(results->pairs.mean), "variance", tool_json_number(results->pairs.variance),
                     "matrix", matrix);
}

static json_t *make_components(const analyze_arguments *arguments, const analyze_results *results)
{
    const analyze_pairs *const pairs = &results->pairs;
    const int64_t members = results->population->members;
    return json_pack("{s:o, s:I, s:I, s:I, s:o, s:o}", "fraction", tool_json_number(arguments->fraction), "matrices",
                     (json_int_t)members, "count", (json_int_t)pairs->components, "count_about_mean",
                     (json_int_t)pairs->centred_components, "eigenvalues", make_numbers(pairs->spectrum, members, 1.0),
                     "eigenvalues_about_mean", make_numbers(pairs->centred, members, 1.0));
}

static json_t *make_nll(const analyze_results *results)
{
    const analyze_population *const population = results->population;
    json_t *list = json_array();
    for (int64_t s = 0; s < results->observations.sequences; s++) {
        for (int64_t h = 0; h < population->heads; h++)
            tool_json_append(&list,
                             json_pack("{s:I, s:I, s:o}", "batch", (json_int_t)sequence_name(results, s), "head",
                                       (json_int_t)population->head[h], "nll", tool_json_number(nll(results, s, h))));
    }
    return list;
}

static json_t *make_responsibilities(const analyze_results *results)
{
    const analyze_population *const population = results->population;
    json_t *list = json_array();
    for (int64_t m = 0; m < population->members; m++) {
        const analyze_member *const member = &results->observations.member[m];
        const double pairs = member->pairs > 0.0 ? member->pairs : 1.0;
        tool_json_append(&list, json_pack("{s:I, s:I, s:o, s:o}", "batch", (json_int_t)analyze_batch_of(population, m),
                                          "head", (json_int_t)analyze_head_of(population, m), "share",
                                          make_numbers(member->share, results->observations.components, pairs),
                                          "entropy", tool_json_number(member->component_entropy / pairs)));
    }
    return list;
}

static json_t *make_plots(const analyze_plot plots[ANALYZE_KINDS])
{
    json_t *const object = json_object();
    for (int kind = 0; kind < ANALYZE_KINDS; kind++) {
        if (plots[kind].path[0])
            json_object_set_new(object, analyze_name((analyze_kind)kind), tool_json_text(plots[kind].path));
    }
    return object;
}

static json_t *make_json(const analyze_arguments *arguments, const analyze_results *results,
                         const analyze_plot plots[ANALYZE_KINDS])
{
    const analyze_population *const population = results->population;
    const clmgk_attention_desc *const desc = &population->problem.desc;
    const bool *const wanted = population->wanted;
    json_t *root = json_object();
    json_object_set_new(root, "clmgk", tool_json_text(clmgk_version()));
    json_object_set_new(root, "variant", tool_json_text(clmgk_variant_name(desc->variant)));
    json_object_set_new(root, "score", tool_json_text(clmgk_score_name(desc->score)));
    json_object_set_new(root, "estep", tool_json_text(clmgk_estep_name(desc->estep)));
    json_object_set_new(root, "dtype", tool_json_text(clmgk_dtype_name(desc->dtype)));
    root = tool_json_merge(root, tool_json_own_dtypes(desc));
    root = tool_json_merge(root, tool_json_sizes(desc));
    json_object_set_new(root, "batch_list", make_indices(population->batch, population->batches));
    json_object_set_new(root, "head_list", make_indices(population->head, population->heads));
    json_object_set_new(root, "rows", json_integer((json_int_t)population->rows));
    json_object_set_new(root, "sampled", json_boolean(population->rows < desc->length));
    if (wanted[ANALYZE_MATRICES])
        json_object_set_new(root, "matrices", make_matrices(results));
    if (wanted[ANALYZE_RANK])
        json_object_set_new(root, "rank", make_ranks(arguments, results));
    if (wanted[ANALYZE_DISTANCES])
        json_object_set_new(root, "distances", make_distances(results));
    if (wanted[ANALYZE_COMPONENTS])
        json_object_set_new(root, "components_of_variance", make_components(arguments, results));
    if (wanted[ANALYZE_NLL])
        json_object_set_new(root, "nll", make_nll(results));
    if (wanted[ANALYZE_RESPONSIBILITIES])
        json_object_set_new(root, "responsibilities", make_responsibilities(results));
    json_object_set_new(root, "plots", make_plots(plots));
    return root;
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

static void print_heads(const analyze_results *results)
{
    const analyze_population *const population = results->population;
    const bool *const wanted = population->wanted;
    printf("sequence head%s%s\n", wanted[ANALYZE_MATRICES] ? "  row entropy  largest weight" : "",
           wanted[ANALYZE_RANK] ? "   rank  singular values" : "");
    for (int64_t m = 0; m < population->members; m++) {
        printf("%8" PRId64 " %4" PRId64, analyze_batch_of(population, m), analyze_head_of(population, m));
        if (wanted[ANALYZE_MATRICES])
            printf("  %11.4f  %14.4g", row_entropy(results, m), results->observations.member[m].largest);
        if (wanted[ANALYZE_RANK]) {
            const analyze_rank *const rank = &results->ranks.member[m];
            printf("  %5" PRId64 "  %.3g to %.3g", rank->rank, rank->largest, rank->smallest);
            if (rank->low != rank->high)
                printf(" (between %" PRId64 " and %" PRId64 ": --full-svd tells)", rank->low, rank->high);
        }
        putchar('\n');
    }
}

static void print_pairs(const analyze_arguments *arguments, const analyze_results *results)
{
    const analyze_population *const population = results->population;
    if (population->wanted[ANALYZE_DISTANCES])
        printf("squared L2 distances between heads: mean %.6g, variance %.6g, of %" PRId64 " pairs\n",
               results->pairs.mean, results->pairs.variance, population->members * (population->heads - 1) / 2);
    if (population->wanted[ANALYZE_COMPONENTS])
        printf("principal components for %g %% of the variance: %" PRId64 " (about the mean %" PRId64 ") of %" PRId64
               " matrices\n",
               100.0 * arguments->fraction, results->pairs.components, results->pairs.centred_components,
               population->members);
}

static void print_mixture(const analyze_results *results)
{
    const analyze_population *const population = results->population;
    const analyze_observations *const all = &results->observations;
    for (int64_t s = 0; population->wanted[ANALYZE_NLL] && s < all->sequences; s++) {
        printf("query negative log-likelihood, sequence %" PRId64 ":", sequence_name(results, s));
        for (int64_t h = 0; h < population->heads; h++)
            printf(" %.6g", nll(results, s, h));
        putchar('\n');
    }
    for (int64_t m = 0; population->wanted[ANALYZE_RESPONSIBILITIES] && m < population->members; m++) {
        const double pairs = all->member[m].pairs > 0.0 ? all->member[m].pairs : 1.0;
        printf("responsibilities, sequence %" PRId64 ", head %" PRId64 ": shares", analyze_batch_of(population, m),
               analyze_head_of(population, m));
        for (int64_t r = 0; r < all->components; r++)
            printf(" %.4f", all->member[m].share[r] / pairs);
        printf(", entropy %.4f\n", all->member[m].component_entropy / pairs);
    }
}

static tool_exit print_words(const analyze_arguments *arguments, const analyze_results *results, tool_error *error)
{
    const analyze_population *const population = results->population;
    const clmgk_attention_desc *const d = &population->problem.desc;
    fprintf(stderr,
            "%s %s, B %" PRId64 ", H %" PRId64 ", M %" PRId64 ", N %" PRId64 ", S %" PRId64 ", D %" PRId64 ": %" PRId64
            " %s\n",
            clmgk_variant_name(d->variant), tool_dtypes_text(d).text, d->batch, d->heads, d->components, d->length,
            d->length_k, d->head_size, population->members,
            tool_plural((uint64_t)population->members, "matrix", "matrices"));
    if (population->rows < d->length)
        printf("of each matrix %" PRId64 " of %" PRId64
               " rows: ranks are of these rows, distances estimates for all rows\n",
               population->rows, d->length);
    if (population->wanted[ANALYZE_MATRICES] || population->wanted[ANALYZE_RANK])
        print_heads(results);
    print_pairs(arguments, results);
    print_mixture(results);
    return tool_flush_stdout(error);
}

tool_exit analyze_report(const analyze_arguments *arguments, const analyze_results *results,
                         const analyze_plot plots[ANALYZE_KINDS], tool_error *error)
{
    return arguments->json ? tool_print_json(make_json(arguments, results, plots), error)
                           : print_words(arguments, results, error);
}
