/* SPDX-License-Identifier: Apache-2.0 */
/* The options of scores and masks of the user's own. */
#include "input.h"

#include <string.h>

/* Splits NAME=VALUE; *name is a copy that lives as long as the arguments. */
static tool_exit split(const char *option, const char *text, tool_text_name *name, const char **value,
                       tool_error *error)
{
    const size_t length = strcspn(text, "=");
    if (text[length] == '\0' || length == 0 || length >= sizeof name->text)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected NAME=%s, a name of at most %zu letters", option,
                         text, strcmp(option, "number") == 0 ? "X" : "F", sizeof name->text - 1);
    memcpy(name->text, text, length);
    name->text[length] = '\0';
    *value = text + length + 1;
    return TOOL_DONE;
}

/* The place of a name among those of an option, which gave `count`. */
static tool_exit find(const char *option, const tool_text_name *name, const char *of, const tool_text_name *names,
                      size_t count, size_t *place, tool_error *error)
{
    for (*place = 0; *place < count; (*place)++) {
        if (strcmp(names[*place].text, name->text) == 0)
            return TOOL_DONE;
    }
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: expected a name that --%s gives", option, name->text, of);
}

static tool_exit parse_inputs(const char *const *values, tool_problem_arguments *arguments, tool_error *error)
{
    for (size_t c = 0; c < CLMGK_MAX_CAPTURES && values[TOOL_OPTION_CAPTURE_0 + c]; c++) {
        TOOL_TRY(split("capture", values[TOOL_OPTION_CAPTURE_0 + c], &arguments->captures[c],
                       &arguments->file[CLMGK_ARRAY_CAPTURE_0 + c], error));
        arguments->capture_count++;
    }
    for (size_t n = 0; n < CLMGK_MAX_NUMBERS && values[TOOL_OPTION_NUMBER_0 + n]; n++) {
        const char *text = NULL;
        TOOL_TRY(split("number", values[TOOL_OPTION_NUMBER_0 + n], &arguments->numbers[n], &text, error));
        TOOL_TRY(tool_parse_number("number", text, &arguments->number[n], error));
        arguments->number_count++;
    }
    return TOOL_DONE;
}

static tool_exit parse_gradients(const char *const *values, tool_problem_arguments *arguments, tool_error *error)
{
    const char *path = NULL;
    tool_text_name name;
    size_t place = 0;
    for (size_t c = 0; c < CLMGK_MAX_CAPTURES && values[TOOL_OPTION_GRAD_CAPTURE_0 + c]; c++) {
        TOOL_TRY(split("grad-capture", values[TOOL_OPTION_GRAD_CAPTURE_0 + c], &name, &path, error));
        TOOL_TRY(find("grad-capture", &name, "capture", arguments->captures, arguments->capture_count, &place, error));
        arguments->file[CLMGK_ARRAY_GRAD_CAPTURE_0 + place] = path;
    }
    for (size_t n = 0; n < CLMGK_MAX_NUMBERS && values[TOOL_OPTION_GRAD_NUMBER_0 + n]; n++) {
        TOOL_TRY(split("grad-number", values[TOOL_OPTION_GRAD_NUMBER_0 + n], &name, &path, error));
        TOOL_TRY(find("grad-number", &name, "number", arguments->numbers, arguments->number_count, &place, error));
        arguments->grad_number[place] = path;
    }
    return TOOL_DONE;
}

static tool_exit parse_block(const char *const *values, tool_problem_arguments *arguments, tool_error *error)
{
    enum { LEAST = 16, MOST = 1 << 20 };
    int64_t *const size = arguments->mask_block;
    const char *const text = values[TOOL_OPTION_MASK_BLOCK];
    if (!text)
        return TOOL_DONE;
    if (!values[TOOL_OPTION_MASK_MOD] && !values[TOOL_OPTION_ARRAYS + CLMGK_ARRAY_MASK_BLOCKS])
        return tool_fail(error, TOOL_BAD_INPUT, "--mask-block needs --mask-mod or --mask-blocks");
    if (tool_parse_integers("mask-block", text, LEAST, MOST, 2, size, error) == TOOL_DONE &&
        (size[0] & (size[0] - 1)) == 0 && (size[1] & (size[1] - 1)) == 0)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--mask-block '%s': expected queries,keys: two powers of two from %d to %d",
                     text, LEAST, MOST);
}

tool_exit texts_parse(const char *const *values, tool_problem_arguments *arguments, tool_error *error)
{
    static const struct {
        size_t option, needs;
        const char *name, *needed;
    } rules[] = {{TOOL_OPTION_GRAD_CAPTURE_0, TOOL_OPTION_SCORE_MOD, "grad-capture", "score-mod"},
                 {TOOL_OPTION_GRAD_NUMBER_0, TOOL_OPTION_SCORE_MOD, "grad-number", "score-mod"},
                 {TOOL_OPTION_GRAD_CAPTURE_0, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O, "grad-capture", "grad-out"},
                 {TOOL_OPTION_GRAD_NUMBER_0, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O, "grad-number", "grad-out"}};
    arguments->score_mod = values[TOOL_OPTION_SCORE_MOD];
    arguments->mask_mod = values[TOOL_OPTION_MASK_MOD];
    for (size_t n = 0; n < TOOL_COUNT(rules); n++) {
        if (values[rules[n].option] && !values[rules[n].needs])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s needs --%s", rules[n].name, rules[n].needed);
    }
    const char *const idle = values[TOOL_OPTION_CAPTURE_0] ? "capture" : "number";
    const bool any = values[TOOL_OPTION_CAPTURE_0] || values[TOOL_OPTION_NUMBER_0];
    if (any && !arguments->score_mod && !arguments->mask_mod)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s needs --score-mod or --mask-mod", idle);
    TOOL_TRY(parse_block(values, arguments, error));
    TOOL_TRY(parse_inputs(values, arguments, error));
    return parse_gradients(values, arguments, error);
}
