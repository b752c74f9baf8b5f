/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#define OWN_OPTIONS(X)                                                                                                 \
    X(STATE_OUT, "state-out", "P",                                                                                     \
      "writes the state after all keys, likewise; refused where its numbers don't fit\n"                               \
      "float32")                                                                                                       \
    X(CHECK, "check", NULL,                                                                                            \
      "compare with double precision on the host (slow), print the largest error;\n"                                   \
      "exit status 1 if it exceeds the bound; outputs are written in any case")                                        \
    X(REPEAT, "repeat", "R",                                                                                           \
      "R timed repetitions of each pass after one run; prints the median and the\n"                                    \
      "rate")                                                                                                          \
    X(ENGINE, "engine", "NAME", TOOL_ENGINE_NAMES ": for development")                                                 \
    X(PARAMETERS, "parameters", "LIST", "kernel parameters name=value,...: for development")                           \
    X(BACKWARD_PARAMETERS, "backward-parameters", "LIST", "the same for the backward pass and the statistics")

enum { OPTION_BEFORE = TOOL_PROBLEM_OPTION_COUNT - 1, OWN_OPTIONS(TOOL_OPTION_NUMBER) };

#define ROW(name, ...) [OPTION_##name] = {__VA_ARGS__},
static const tool_option options[] = {TOOL_STANDARD_OPTIONS, TOOL_PROBLEM_ROWS TOOL_OUTPUT_LIST(TOOL_ARRAY_ROW)
                                                                 TOOL_O_OPTIONS(TOOL_PROBLEM_ROW) OWN_OPTIONS(ROW)};
#undef ROW

const tool_program run_program = {
    .name = "clmgk-run",
    .summary =
        "Usage: clmgk-run --variant NAME --q F --k F --v F [--out F] [--lse F] [OPTION...]\n"
        "Attention with one or several Gaussian keys per position, with scores mixed across heads, or with feature\n"
        "maps in linear time, on arrays in .npy files.",
    .notes = "F is a .npy file: version 1 to 3, either byte order, C or Fortran order; float16, float32 or float64,\n"
             "lengths and offsets int32 or int64. A is such a file (its name ends in .npy) or numbers separated by\n"
             "commas. Outputs are C-order little-endian float32 files; they appear when all of them are complete, and\n"
             "none may be an input or another output. At least one output, --check or --repeat is given. With\n"
             "--grad-out and no gradient's file, dQ, dK and dV are computed (for --check and --repeat).\n"
             "\n"
             "--json prints: clmgk (version), variant, score, estep, dtype, dtype_k, dtype_v, dtype_o (null: as\n"
             "dtype), dtype_grad (null: as the arrays), precision (null: exact), precision_used, engine, engine_reason "
             "(why this engine), parameters,\n"
             "tuning (source of the parameters), device {name, platform, driver, selector}, batch, heads, kv_heads,\n"
             "components, length, length_k, head_size, value_size, causal, with a hidden layer mix_hidden (U), with\n"
             "mixing after the softmax mix_after_heads (A), in the linear family feature and features (F), "
             "workspace_bytes, compile_ms, program (memory, shipped, disk, "
             "built), cache_note (why\n"
             "the program is not kept for the next start), flops (executed products over visible pairs), outputs\n"
             "{option: path}, with --repeat time_ms {median, min, max, repeat} and gflops, with --grad-out backward\n"
             "{gradients: [options], flops, with --repeat time_ms and gflops}, with --check check {ok, lost_rows,\n"
             "reads_outside (of captured arrays),\n"
             "option: {error, bound, max, nan, first_nan, infinite, first_infinite}}.",
    .options = options,
    .option_count = TOOL_COUNT(options),
};

/* ---- which options apply ------------------------------------------------------------------------------------ */

/* Something to do; and the backward pass and the statistics have parameters of their own. */
static tool_exit check_passes(const char *const *values, tool_error *error)
{
    bool any = values[OPTION_CHECK] || values[OPTION_REPEAT] || values[OPTION_STATE_OUT];
    any = any || values[TOOL_OPTION_GRAD_CAPTURE_0] || values[TOOL_OPTION_GRAD_NUMBER_0];
    bool backward = values[TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O] != NULL;
    for (int array = 0; array < (int)TOOL_FILES; array++) {
        const bool given = values[TOOL_OPTION_ARRAYS + array] != NULL;
        any = any || (given && tool_is_output((clmgk_array)array));
        backward = backward || (given && clmgk_array_get_info((clmgk_array)array)->statistic);
    }
    if (values[OPTION_BACKWARD_PARAMETERS] && !backward)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s needs --grad-out or an output that is a statistic",
                         options[OPTION_BACKWARD_PARAMETERS].name);
    return any ? TOOL_DONE
               : tool_fail(error, TOOL_BAD_INPUT, "nothing to do: give --out, another output, --check or --repeat");
}

static tool_exit check_state_out(const char *const *values, clmgk_variant variant, tool_error *error)
{
    const char *const name = options[OPTION_STATE_OUT].name;
    if (!values[OPTION_STATE_OUT])
        return TOOL_DONE;
    TOOL_TRY(tool_check_output_name(name, values[OPTION_STATE_OUT], error));
    if (!tool_is_linear(variant))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to %s", name, clmgk_variant_name(variant));
    if (values[TOOL_OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS])
        return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to packed sequences (--%s)", name,
                         tool_array_option(CLMGK_ARRAY_OFFSETS));
    return TOOL_DONE;
}

tool_exit run_parse(int argc, char **argv, run_arguments *arguments, bool *finished, tool_error *error)
{
    const size_t v = TOOL_OPTION_ARRAYS + CLMGK_ARRAY_V;
    const char *values[TOOL_COUNT(options)];
    TOOL_TRY(tool_parse_options(&run_program, argc, argv, values, finished, error));
    if (*finished)
        return TOOL_DONE;
    TOOL_TRY(tool_parse_problem(values, &arguments->problem, error));
    TOOL_TRY(tool_require(values, v, options[v].name, NULL, error));
    TOOL_TRY(check_state_out(values, arguments->problem.variant, error));
    TOOL_TRY(check_passes(values, error));
    arguments->check = values[OPTION_CHECK] != NULL;
    arguments->json = values[TOOL_OPTION_JSON] != NULL;
    arguments->device = values[TOOL_OPTION_DEVICE];
    arguments->parameters = values[OPTION_PARAMETERS];
    arguments->backward_parameters = values[OPTION_BACKWARD_PARAMETERS];
    arguments->state_out = values[OPTION_STATE_OUT];
    arguments->engine = CLMGK_ENGINE_AUTO;
    arguments->repeat = 0;
    TOOL_TRY(tool_name_state(options[OPTION_STATE_OUT].name, arguments->state_out, CLMGK_ARRAY_NEW_STATE_C,
                             arguments->state_out_files, &arguments->problem, error));
    TOOL_TRY(tool_parse_engine("engine", values[OPTION_ENGINE], &arguments->engine, error));
    return tool_parse_integer("repeat", values[OPTION_REPEAT], 1, 1000000, &arguments->repeat, error);
}
