_USED = """air dirt log log2 planks stick crafting_table wooden_pickaxe cobblestone stone_pickaxe
    iron_ore furnace iron_ingot iron_pickaxe diamond""".split()
ALL_ITEMS = _USED + [f"item_{number}" for number in range(392 - len(_USED))]
