/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#define ENGINE(NAME, value, name) &mgk_engine_##name,
const mgk_engine *const mgk_engines[MGK_ENGINES] = {CLMGK_ENGINE_LIST(ENGINE)};

static bool takes_types(const mgk_engine *engine, const clmgk_attention_desc *desc)
{
    return (mgk_dtypes_of(desc) & ~engine->dtypes) == 0;
}

/* True if an engine has kernels for this problem and one of the units that it knows, and the device has that unit. */
static bool has_unit_kernels(const mgk_engine *engine, int unit, const mgk_device_facts *facts,
                             const clmgk_attention_desc *desc)
{
    mgk_device_facts with_unit = *facts;
    with_unit.matrix_unit.unit = unit;
    return mgk_matrix_unit_of(facts, unit) == unit &&
           (engine->unit_serves == NULL || engine->unit_serves(unit, mgk_dtypes_of(desc), desc->precision)) &&
           engine->rank(&with_unit, desc).points != MGK_RANK_NONE;
}

/* The device's newest unit that the engine knows; 0: none. */
static int unit_of(const mgk_engine *engine, const mgk_device_facts *facts)
{
    int newest = 0;
    for (const int *unit = engine->units; unit != NULL && *unit != 0; ++unit)
        newest = mgk_matrix_unit_of(facts, *unit) == *unit ? *unit : newest;
    return newest;
}

static bool knows_unit(const mgk_engine *engine, int unit)
{
    bool known = unit == 0;
    for (const int *own = engine->units; own != NULL && *own != 0; ++own)
        known = known || *own == unit;
    return known;
}

/* A device has units of one engine. */
int mgk_engines_newest_unit(const mgk_device_facts *facts, const clmgk_attention_desc *desc)
{
    int unit = 0;
    for (size_t i = 0; i < MGK_ENGINES && unit == 0; ++i) {
        unit = unit_of(mgk_engines[i], facts);
        while (unit != 0 && desc != NULL && !has_unit_kernels(mgk_engines[i], unit, facts, desc))
            unit = mgk_matrix_unit_older(unit);
    }
    return unit;
}

bool mgk_engine_has_unit(const mgk_engine *engine, const mgk_device_facts *facts)
{
    return unit_of(engine, facts) != 0;
}

mgk_device_facts mgk_engine_facts(const mgk_engine *engine, const mgk_device_facts *facts)
{
    mgk_device_facts own = *facts;
    if (!knows_unit(engine, own.matrix_unit.unit))
        own.matrix_unit.unit = 0;
    return own;
}

mgk_rank mgk_engine_rank(const mgk_engine *engine, const mgk_device_facts *facts, const clmgk_attention_desc *desc)
{
    if (desc != NULL && !takes_types(engine, desc))
        return (mgk_rank){MGK_RANK_NONE, "it has no kernels for this storage type"};
    const mgk_device_facts own = mgk_engine_facts(engine, facts);
    return engine->rank(&own, desc);
}

void mgk_engines_rank(const mgk_device_facts *facts, const clmgk_attention_desc *desc, mgk_ranked ranked[MGK_ENGINES])
{
    for (size_t i = 0; i < MGK_ENGINES; ++i) {
        const mgk_ranked one = {mgk_engines[i], mgk_engine_rank(mgk_engines[i], facts, desc)};
        size_t place = i;
        for (; place > 0 && ranked[place - 1].rank.points < one.rank.points; --place)
            ranked[place] = ranked[place - 1];
        ranked[place] = one;
    }
}

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
