"""What `environments.minecraft` uses of MineRL 0.4.4, with a toy world in place of Minecraft."""

worlds: list = []
