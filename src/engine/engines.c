/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#define ENGINE(NAME, value, name) &mgk_engine_##name,
const mgk_engine *const mgk_engines[MGK_ENGINES] = {CLMGK_ENGINE_LIST(ENGINE)};

mgk_tunables mgk_engine_tunables(const mgk_engine *engine, const mgk_added_tunables *added)
{
    mgk_tunables tunables = mgk_tunables_of(engine->tunables);
    if (added != NULL)
        tunables.name = added->tables[engine->value];
    tunables.added = added;
    return tunables;
}

const mgk_engine *mgk_engine_of(clmgk_engine value)
{
    for (size_t i = 0; i < MGK_ENGINES; ++i)
        if (mgk_engines[i]->value == value)
            return mgk_engines[i];
    return NULL;
}

const mgk_engine *mgk_engine_named(const char *name)
{
    clmgk_engine value = CLMGK_ENGINE_AUTO;
    return clmgk_engine_from_name(name, &value, NULL) == CLMGK_OK ? mgk_engine_of(value) : NULL;
}
