"""MineRL 0.4.4, as far as `suites.minecraft` uses it, with a toy world in place of Minecraft."""

worlds: list = []
