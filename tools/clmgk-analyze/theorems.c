/* SPDX-License-Identifier: Apache-2.0 */
#include "theorems.h"

#include "gnuplot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- the picture ------------------------------------------------------------------------------------------------ */

static tool_exit draw(const analyze_arguments *arguments, const theorem1_result *one, const analyze_plot *plot,
                      tool_outputs *outputs, tool_error *error)
{
    FILE *script = NULL, *picture = NULL;
    TOOL_TRY(analyze_begin_plot(arguments, plot, 800, 480, outputs, &script, &picture, error));
    fputs("$below << END\n", script);
    for (int64_t c = 0; c < one->count; c++)
        if (!one->one[c].constructed)
            fprintf(script, "%" PRId64 " %.6g %.6g %.6g\n", one->one[c].head_size, one->one[c].distance_mean,
                    one->one[c].distance_min, one->one[c].least_min);
    fputs("END\n$above << END\n", script);
    for (int64_t c = 0; c < one->count; c++)
        if (one->one[c].constructed)
            fprintf(script, "%" PRId64 " %.6g %.6g\n", one->one[c].head_size, fmax(one->one[c].error, 1e-12),
                    one->one[c].bound);
    fprintf(
        script,
        "END\nset title 'Low-rank bottleneck, Theorem 1: n = %" PRId64 " tokens, %" PRId64 " random P for each D'\n"
        "set xlabel 'head size D'\nset ylabel 'largest |softmax - P|'\nset logscale y\nset format y '10^{%%T}'\n"
        "set yrange [1e-9:1]\nset xrange [0:%" PRId64 "]\nset grid ytics lc rgb '#dddddd'\n"
        "set key outside bottom center maxrows 3\n"
        "set arrow from %" PRId64 ",graph 0 to %" PRId64 ",graph 1 nohead dt 2 lc rgb '#999999'\n"
        "set label 'D = n' at %" PRId64 ",graph 0.96 offset 0.5,0\n"
        "plot $below using 1:2 with linespoints ls 1 lw 2 pt 7 ps 0.6 title 'D < n: best weights, mean',"
        " $below using 1:3 with linespoints lc rgb '#56B4E9' lw 2 pt 7 ps 0.6 title 'D < n: best weights, least',"
        " $below using 1:4 with linespoints lc rgb '#D55E00' lw 2 pt 2 ps 0.6 title 'D < n: proven bound, least',"
        " $above using 1:2 with linespoints lc rgb '#009E73' lw 2 pt 7 ps 0.6 title 'D ≥ n: construction in f32, "
        "largest',"
        " $above using 1:3 with linespoints lc rgb '#999999' dt 3 lw 2 pt 1 ps 0.4 title 'D ≥ n: limit of rounding'\n",
        arguments->tokens, arguments->trials, 2 * arguments->tokens + 1, arguments->tokens, arguments->tokens,
        arguments->tokens);
    return analyze_end_plot(arguments, script, picture, error);
}

/* ---- words and JSON --------------------------------------------------------------------------------------------- */

static const char *const case_names[THEOREM2_CASES] = {"values", "symmetric", "skew"};

static json_t *make_case(const theorem1_case *one)
{
    if (one->constructed)
        return json_pack("{s:I, s:o, s:o, s:b}", "head_size", (json_int_t)one->head_size, "error",
                         tool_json_number(one->error), "bound", tool_json_number(one->bound), "ok", (int)one->ok);
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:b}", "head_size", (json_int_t)one->head_size, "distance_min",
                     tool_json_number(one->distance_min), "distance_mean", tool_json_number(one->distance_mean),
                     "lower_bound_min", tool_json_number(one->least_min), "lower_bound_mean",
                     tool_json_number(one->least_mean), "gradient", tool_json_number(one->gradient), "ok",
                     (int)one->ok);
}

static json_t *make_theorem1(const analyze_arguments *arguments, const theorem1_result *one)
{
    json_t *below = json_array(), *above = json_array();
    for (int64_t c = 0; c < one->count; c++)
        tool_json_append(one->one[c].constructed ? &above : &below, make_case(&one->one[c]));
    return json_pack("{s:I, s:I, s:o, s:o, s:{s:o, s:o}, s:b}", "tokens", (json_int_t)arguments->tokens, "trials",
                     (json_int_t)arguments->trials, "below", below, "at_least", above, "paper_example", "distance",
                     tool_json_number(one->paper_distance), "lower_bound", tool_json_number(one->paper_least), "ok",
                     (int)one->ok);
}

static json_t *make_theorem2(const analyze_arguments *arguments, const theorem2_result *two)
{
    json_t *cases = json_object();
    for (int c = 0; c < THEOREM2_CASES; c++)
        json_object_set_new(cases, case_names[c], tool_json_number(two->difference[c]));
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:b}", "width", (json_int_t)THEOREM2_WIDTH, "heads",
                     (json_int_t)THEOREM2_HEADS, "head_size", (json_int_t)THEOREM2_HEAD_SIZE, "trials",
                     (json_int_t)arguments->trials, "least_difference", cases, "inclusion_error",
                     tool_json_number(two->inclusion), "ok", (int)two->ok);
}

static void print_words(const analyze_arguments *arguments, const theorem1_result *one, const theorem2_result *two)
{
    printf("Theorem 1, n = %" PRId64 " tokens, %" PRId64 " random P for each head size D:\n", arguments->tokens,
           arguments->trials);
    for (int64_t c = 0; c < one->count; c++) {
        const theorem1_case *const it = &one->one[c];
        if (it->constructed)
            printf("  D = %2" PRId64 ": constructed, error in f32 at most %.3g, limit %.3g: %s\n", it->head_size,
                   it->error, it->bound, it->ok ? "ok" : "FAILED");
        else
            printf("  D = %2" PRId64 ": best distance %.3g (mean %.3g), proven to be above %.3g (mean %.3g): %s\n",
                   it->head_size, it->distance_min, it->distance_mean, it->least_min, it->least_mean,
                   it->ok ? "ok" : "FAILED");
    }
    printf("  the paper's example, D = 1, n = 2: best distance %.4g, proven to be above %.4g\n", one->paper_distance,
           one->paper_least);
    printf("Theorem 2, width %d, %d heads of %d against heads of %d, %" PRId64 " layers:\n", THEOREM2_WIDTH,
           THEOREM2_HEADS, THEOREM2_WIDTH / THEOREM2_HEADS, THEOREM2_HEAD_SIZE, arguments->trials);
    printf("  least relative difference in the proof's cases %.3g, %.3g, %.3g; small heads as large ones: %.2g: %s\n",
           two->difference[0], two->difference[1], two->difference[2], two->inclusion, two->ok ? "ok" : "FAILED");
}

static tool_exit report(const analyze_arguments *arguments, const theorem1_result *one, const theorem2_result *two,
                        const analyze_plot *plot, tool_error *error)
{
    if (arguments->json) {
        json_t *const root = json_pack("{s:o, s:o, s:o, s:b, s:{s:o*}}", "clmgk", tool_json_text(clmgk_version()),
                                       "theorem1", make_theorem1(arguments, one), "theorem2",
                                       make_theorem2(arguments, two), "ok", (int)(one->ok && two->ok), "plots",
                                       "theorems", plot->path[0] ? tool_json_text(plot->path) : NULL);
        TOOL_TRY(tool_print_json(root, error));
    } else {
        print_words(arguments, one, two);
        TOOL_TRY(tool_flush_stdout(error));
    }
    return one->ok && two->ok
               ? TOOL_DONE
               : tool_fail(error, TOOL_CHECK_FAILED, "--theorems: Theorem %d does not hold", one->ok ? 2 : 1);
}

tool_exit analyze_theorems(const analyze_arguments *arguments, tool_outputs *outputs, tool_error *error)
{
    theorem1_result one;
    theorem2_result two;
    analyze_plot plot = {.path = ""};
    if (arguments->plots)
        TOOL_TRY(analyze_announce(arguments, "theorems", outputs, &plot, error));
    TOOL_TRY(theorem1_solve(arguments, &one, error));
    theorem2_solve(arguments, &two);
    if (arguments->plots)
        TOOL_TRY(draw(arguments, &one, &plot, outputs, error));
    TOOL_TRY(tool_outputs_commit(outputs, error));
    return report(arguments, &one, &two, &plot, error);
}
