/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- --help ------------------------------------------------------------------------------------------------- */

#define HELP_COLUMN 28

static void print_option(const tool_option *option)
{
    if (!option->help)
        return;
    const int width =
        printf("  --%s%s%s", option->name, option->argument ? " " : "", option->argument ? option->argument : "");
    if (width >= HELP_COLUMN)
        printf("\n%*s", HELP_COLUMN, "");
    else
        printf("%*s", HELP_COLUMN - width, "");
    for (const char *c = option->help; *c != '\0'; c++) {
        putchar(*c);
        if (*c == '\n')
            printf("%*s", HELP_COLUMN, "");
    }
    putchar('\n');
}

static void print_help(const tool_program *program)
{
    printf("%s\n\n", program->summary);
    for (size_t i = TOOL_STANDARD_OPTION_COUNT; i < program->option_count; i++)
        print_option(&program->options[i]);
    for (size_t i = 0; i < TOOL_STANDARD_OPTION_COUNT; i++)
        print_option(&program->options[i]);
    if (program->notes)
        printf("\n%s\n", program->notes);
    printf("\nExit status: 0 done; 1 a check or comparison failed; 2 bad usage or bad input; 3 no usable device, or\n"
           "the device or driver failed; 4 out of memory, an output that cannot be written, another system error.\n");
}

/* ---- the command line --------------------------------------------------------------------------------------- */

static struct option *make_getopt_table(const tool_program *program)
{
    struct option *const table = calloc(program->option_count + 1, sizeof *table);
    for (size_t i = 0; table && i < program->option_count; i++) {
        table[i].name = program->options[i].name;
        table[i].has_arg = program->options[i].argument ? required_argument : no_argument;
    }
    return table;
}

static tool_exit fail_word(const tool_program *program, const char *word, tool_error *error)
{
    const int name = (int)strcspn(word, "=");
    for (size_t i = 0; i < program->option_count; i++) {
        const tool_option *const option = &program->options[i];
        if (strncmp(word, "--", 2) != 0 || (int)strlen(option->name) != name - 2 ||
            strncmp(word + 2, option->name, (size_t)name - 2) != 0)
            continue;
        if (option->argument)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s needs a value (%s)", option->name, option->argument);
        return tool_fail(error, TOOL_BAD_INPUT, "--%s takes no value", option->name);
    }
    return tool_fail(error, TOOL_BAD_INPUT, "unknown option '%.*s'; options are written in full, see %s --help", name,
                     word, program->name);
}

/* Sets values[index] to the argument that getopt_long found in `word`. */
static tool_exit take_option(const tool_program *program, size_t index, const char *word, const char *value,
                             const char **values, tool_error *error)
{
    const tool_option *const option = &program->options[index];
    if (strcspn(word, "=") != strlen(option->name) + 2) /* getopt_long takes unambiguous beginnings */
        return fail_word(program, word, error);
    if (!option->help)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s is not an option of %s", option->name, program->name);
    size_t place = index; /* rows of one name take an option that is given again */
    while (values[place] && place + 1 < program->option_count &&
           strcmp(program->options[place + 1].name, option->name) == 0)
        place++;
    if (values[place] && place > index)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s is given more than %zu times", option->name, place - index + 1);
    if (values[place])
        return tool_fail(error, TOOL_BAD_INPUT, "--%s is given more than once", option->name);
    values[place] = value ? value : "";
    return TOOL_DONE;
}

static tool_exit walk_options(const tool_program *program, const struct option *table, int argc, char **argv,
                              const char **values, tool_error *error)
{
    opterr = 0;
    optind = 1;
    while (optind < argc) {
        const char *const word = argv[optind];
        int index = -1;
        const int found = getopt_long(argc, argv, "+:", table, &index);
        if (found == -1)
            break;
        if (found != 0 || index < 0)
            return fail_word(program, word, error);
        TOOL_TRY(take_option(program, (size_t)index, word, optarg, values, error));
        if (values[TOOL_OPTION_HELP] || values[TOOL_OPTION_VERSION])
            return TOOL_DONE;
    }
    if (optind < argc)
        return tool_fail(error, TOOL_BAD_INPUT, "unexpected argument '%s'; see %s --help", argv[optind], program->name);
    return TOOL_DONE;
}

tool_exit tool_check_selector(const char *selector, tool_error *error)
{
    return selector && !*selector
               ? tool_fail(error, TOOL_BAD_INPUT, "--device '': expected PLATFORM:DEVICE, cpu, gpu or a part of a name")
               : TOOL_DONE;
}

tool_exit tool_parse_options(const tool_program *program, int argc, char **argv, const char **values, bool *finished,
                             tool_error *error)
{
    *finished = false;
    for (size_t i = 0; i < program->option_count; i++)
        values[i] = NULL;
    struct option *const table = make_getopt_table(program);
    TOOL_TRY(tool_check_memory(table, "the options", error));
    const tool_exit status = walk_options(program, table, argc, argv, values, error);
    free(table);
    if (status != TOOL_DONE)
        return status;
    if (values[TOOL_OPTION_HELP])
        print_help(program);
    else if (values[TOOL_OPTION_VERSION])
        printf("%s %s\n", program->name, clmgk_version());
    else
        return tool_check_selector(values[TOOL_OPTION_DEVICE], error);
    *finished = true;
    return tool_flush_stdout(error);
}

/* ---- values ------------------------------------------------------------------------------------------------- */

tool_exit tool_parse_integers(const char *option, const char *text, int64_t low, int64_t high, size_t count,
                              int64_t *values, tool_error *error)
{
    const char *at = text;
    for (size_t i = 0; text && i < count; i++) {
        char *end = NULL;
        errno = 0;
        const intmax_t number = strtoimax(at, &end, 10);
        if (end == at || *end != (i + 1 < count ? ',' : '\0') || errno == ERANGE || number < low || number > high)
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s '%s': expected %zu whole numbers from %" PRId64 " to %" PRId64
                             ", separated by commas",
                             option, text, count, low, high);
        values[i] = (int64_t)number;
        at = end + 1;
    }
    return TOOL_DONE;
}

tool_exit tool_parse_integer(const char *option, const char *text, int64_t low, int64_t high, int64_t *value,
                             tool_error *error)
{
    if (tool_parse_integers(option, text, low, high, 1, value, error) == TOOL_DONE)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected a whole number from %" PRId64 " to %" PRId64, option,
                     text, low, high);
}

tool_exit tool_parse_window(const char *text, int64_t high, int64_t sides[2], tool_error *error)
{
    if (tool_parse_integers("window", text, -1, high, 2, sides, error) == TOOL_DONE)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--window '%s': expected left,right: two whole numbers from -1 (no limit) to %" PRId64, text,
                     high);
}

tool_exit tool_parse_u64(const char *option, const char *text, uint64_t *value, tool_error *error)
{
    char *end = NULL;
    errno = 0;
    if (!text)
        return TOOL_DONE;
    const uintmax_t number = strtoumax(text, &end, 10);
    if (strspn(text, "0123456789") != strlen(text) || end == text || errno == ERANGE || number > UINT64_MAX)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected a whole number from 0 to %" PRIu64, option, text,
                         UINT64_MAX);
    *value = (uint64_t)number;
    return TOOL_DONE;
}

tool_exit tool_parse_number(const char *option, const char *text, double *value, tool_error *error)
{
    char *end = NULL;
    if (!text)
        return TOOL_DONE;
    *value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*value))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected a finite number", option, text);
    return TOOL_DONE;
}

static void list_names(const char *const *names, size_t count, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count && length < size; i++) {
        const int added = snprintf(text + length, size - length, "%s%s", i == 0 ? "" : ", ", names[i]);
        length += added > 0 ? (size_t)added : 0;
    }
}

tool_exit tool_parse_positive(const char *option, const char *text, double *value, tool_error *error)
{
    TOOL_TRY(tool_parse_number(option, text, value, error));
    return !text || *value > 0 ? TOOL_DONE
                               : tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected a number above 0", option, text);
}

tool_exit tool_parse_name(const char *option, const char *text, const char *const *names, size_t count, size_t *index,
                          tool_error *error)
{
    if (!text)
        return TOOL_DONE;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *index = i;
            return TOOL_DONE;
        }
    }
    char all[512];
    list_names(names, count, all, sizeof all);
    return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected %s%s", option, text, count > 1 ? "one of " : "", all);
}

/* Number `index` of a list, at *at, which moves on to the next. */
static tool_exit take_number(const char *option, const char *text, size_t index, bool last, const char **at,
                             double *value, tool_error *error)
{
    const char *const first = *at;
    char *end = NULL;
    errno = 0;
    *value = strtod(first, &end);
    const bool overflows = isinf(*value) && errno == ERANGE;
    if (end == first || *end != (last ? '\0' : ','))
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s '%s': expected numbers separated by commas, or a file that ends in .npy", option, text);
    if (overflows || (isfinite(*value) && isinf((float)*value)))
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s '%s': element %zu is %.*s; expected a number in the range of f32, at most %.9g in size",
                         option, text, index, (int)(end - first), first, (double)FLT_MAX);
    *at = end + 1;
    return TOOL_DONE;
}

tool_exit tool_parse_numbers(const char *option, const char *text, double **numbers, size_t *count, tool_error *error)
{
    size_t fields = 1;
    for (const char *c = text; *c != '\0'; c++)
        fields += *c == ',';
    double *const values = calloc(fields, sizeof *values);
    TOOL_TRY(tool_check_memory(values, option, error));
    const char *at = text;
    tool_exit status = TOOL_DONE;
    for (size_t i = 0; i < fields; i++)
        TOOL_TRY_GOTO(status, take_number(option, text, i, i + 1 == fields, &at, &values[i], error), fail);
    *numbers = values;
    *count = fields;
    return TOOL_DONE;
fail:
    free(values);
    return status;
}

/* The library names the value and what was expected; the option stands for the noun. */
static tool_exit check_name(const char *option, const char *text, clmgk_status status, tool_error *error)
{
    if (status == CLMGK_OK)
        return TOOL_DONE;
    const char *const expected = strstr(error->library.message, "expected");
    return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': %s", option, text, expected ? expected : "no such name");
}

tool_exit tool_parse_variant(const char *option, const char *text, clmgk_variant *variant, tool_error *error)
{
    return check_name(option, text, text ? clmgk_variant_from_name(text, variant, &error->library) : CLMGK_OK, error);
}

tool_exit tool_parse_dtype(const char *option, const char *text, clmgk_dtype *dtype, tool_error *error)
{
    clmgk_dtype found = (clmgk_dtype)CLMGK_DTYPES;
    if (!text)
        return TOOL_DONE;
    if (clmgk_dtype_from_name(text, &found, NULL) != CLMGK_OK || (int)found >= (int)CLMGK_DTYPES)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected one of %s", option, text, &TOOL_DTYPE_LIST[2]);
    *dtype = found;
    return TOOL_DONE;
}

tool_exit tool_parse_storage(const char *option, const char *text, clmgk_storage *storage, tool_error *error)
{
    clmgk_dtype dtype = (clmgk_dtype)0;
    TOOL_TRY(tool_parse_dtype(option, text, &dtype, error));
    if (text)
        *storage = (clmgk_storage)(1 + (int)dtype);
    return TOOL_DONE;
}

tool_exit tool_parse_cache_storage(const char *option, const char *text, clmgk_storage *storage, tool_error *error)
{
    clmgk_dtype dtype = (clmgk_dtype)0;
    TOOL_TRY(check_name(option, text, text ? clmgk_dtype_from_name(text, &dtype, &error->library) : CLMGK_OK, error));
    if (text)
        *storage = (clmgk_storage)(1 + (int)dtype);
    return TOOL_DONE;
}

tool_exit tool_parse_precision(const char *option, const char *text, clmgk_precision *precision, tool_error *error)
{
    return check_name(option, text, text ? clmgk_precision_from_name(text, precision, &error->library) : CLMGK_OK,
                      error);
}

tool_exit tool_parse_engine(const char *option, const char *text, clmgk_engine *engine, tool_error *error)
{
    return check_name(option, text, text ? clmgk_engine_from_name(text, engine, &error->library) : CLMGK_OK, error);
}

tool_exit tool_parse_score(const char *option, const char *text, clmgk_score *score, tool_error *error)
{
    return check_name(option, text, text ? clmgk_score_from_name(text, score, &error->library) : CLMGK_OK, error);
}

tool_exit tool_parse_estep(const char *option, const char *text, clmgk_estep *estep, tool_error *error)
{
    return check_name(option, text, text ? clmgk_estep_from_name(text, estep, &error->library) : CLMGK_OK, error);
}

tool_exit tool_parse_feature(const char *option, const char *text, clmgk_feature *feature, tool_error *error)
{
    return check_name(option, text, text ? clmgk_feature_from_name(text, feature, &error->library) : CLMGK_OK, error);
}

tool_exit tool_parse_alignment(const char *option, const char *text, clmgk_alignment *alignment, tool_error *error)
{
    return check_name(option, text, text ? clmgk_alignment_from_name(text, alignment, &error->library) : CLMGK_OK,
                      error);
}
